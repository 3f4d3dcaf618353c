//! Framing, authenticated connections, request matching; and routing: from a group to the member that serves it.
