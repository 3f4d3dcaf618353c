//! Sessions at metadata groups: see `request`.

pub(crate) mod request;
