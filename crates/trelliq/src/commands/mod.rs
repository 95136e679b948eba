//! One file a command: its arguments, its help and what it prints.

pub mod completions;
pub mod decode;
pub mod eval;
pub mod hessian;
pub mod inspect;
pub mod quantize;
pub mod run;
pub mod serve;
pub mod validate;

use clap::ValueEnum;
use trelliq_kernels::{KernelOptions, Numerics};
use trelliq_model::RuntimeOptions;

/// A switch that has a value, so that either state can be written out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// How coded layers are computed with.
#[derive(Debug, Clone, clap::Args)]
pub struct Numeric {
    /// Round every decoded weight to bf16, as the dense copy that `decode` writes holds it
    #[arg(long)]
    pub exact: bool,

    /// Re-quantize coded layers to 8-bit groups in memory: for machines that decode slowly
    #[arg(long, conflicts_with = "exact")]
    pub carrier: bool,
}

impl Numeric {
    pub fn runtime(&self) -> RuntimeOptions {
        let numerics = if self.exact { Numerics::Exact } else { Numerics::Fast };
        RuntimeOptions { kernel: KernelOptions { numerics, ..KernelOptions::default() } }
    }
}
