//! What is known of an attachment: its record, whether it lives, and the owner that its objects name.

pub(crate) mod life;
pub(crate) mod owner;
pub(crate) mod record;
