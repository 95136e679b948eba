//! Linear layers whose weights exist only as trellis codes (`docs/spec/linear.md`).

mod activation;
mod carrier;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod gate;
mod linear;
mod matrix;
mod options;
mod rotation;
mod words;

pub use activation::Activation;
pub use carrier::Carrier;
pub use cpu::{DenseRows, Isa, multiply_dense_rows};
pub use error::KernelError;
pub use gate::{Gate, gate_up};
pub use linear::{TrellisLinear, forward_shared};
pub use matrix::{Axis, Numerics, PackedMatrix};
pub use options::{Activations, KernelOptions, PREFILL_FROM, Scratch};
pub use rotation::{Rotation, choose_rotation_block, hadamard_in_place};
pub use words::Words;
