//! Linear layers whose weights exist only as trellis codes (`docs/spec/linear.md`).

mod error;
mod matrix;
mod rotation;
mod words;

pub use error::KernelError;
pub use matrix::{Axis, Numerics, PackedMatrix};
pub use rotation::{Rotation, choose_rotation_block, hadamard_in_place};
pub use words::Words;
