//! One file a command: its arguments, its help and what it prints.

pub mod completions;
pub mod validate;
