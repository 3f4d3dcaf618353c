//! From kernel requests to client calls: both FUSE transports and the protocol layer.
