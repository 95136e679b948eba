//! One file a command: its arguments, its help and what it prints.

pub mod bench;
pub mod completions;
pub mod decode;
pub mod eval;
pub mod hessian;
pub mod inspect;
pub mod quantize;
pub mod run;
pub mod serve;
pub mod validate;

use crate::settings::Settings;
use anyhow::Result;
use clap::ValueEnum;
use std::ops::RangeInclusive;
use trelliq_codec::BITS;
use trelliq_config::Config;
use trelliq_kernels::{KernelOptions, Numerics};
use trelliq_model::runtime::{KEYS, runtime_options};
use trelliq_model::{DeviceChoice, RuntimeOptions};

/// The end of the help of commands that take settings.
macro_rules! settings_help {
    () => {
        "\
Settings (--set, --config, or TRELLIQ_KERNEL_NUMERICS and so on in the environment):
  kernel.numerics        fast, or exact to round decoded weights to bf16
  kernel.activations     auto, int (16 bits), or f32
  kernel.isa             scalar, baseline, avx2, avx512 or avx512-vnni
  kernel.prefill_from    rows from which tiles are decoded for a matrix multiply
  kernel.expand_from     rows from which a whole tensor is expanded first
  kernel.memory_ceiling  bytes that an expanded tensor may take
"
    };
}
use settings_help;

/// An inclusive range of K.
#[derive(Debug, Clone, Copy)]
pub struct Bits(u32, u32);

impl Bits {
    /// A number or a range such as `2-4`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.trim().parse().ok().filter(|bits| BITS.contains(bits));
            number
                .ok_or_else(|| format!("a number of bits lies in {}-{}", BITS.start(), BITS.end()))
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (number(first)?, number(last)?) {
            (first, last) if first <= last => Ok(Self(first, last)),
            _ => Err("a range goes from the lower to the higher number".to_owned()),
        }
    }

    pub fn each(&self) -> RangeInclusive<u32> {
        self.0..=self.1
    }
}

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

    /// Copy codes into the order that kernels read: faster, for about as much memory as the codes
    /// take; auto does where that leaves half of the memory free
    #[arg(long, value_name = "WHEN", default_value = "auto", conflicts_with = "carrier")]
    pub repack: Repack,

    /// Where models run: cpu, cuda, cuda:N, or auto, the first NVIDIA GPU that has room and whose driver,
    /// NVRTC and cuBLAS are installed, else the CPU [default: auto]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,

    #[command(flatten)]
    pub settings: Settings,
}

/// Where and how a model is held.
#[derive(Debug, Clone, Copy)]
pub struct Placement {
    /// See [`LoadOptions`](trelliq_model::LoadOptions).
    pub carrier: bool,
    pub repack: Repack,
    /// `None` for `auto` that is not asked for, and says nothing where there is no GPU.
    pub device: Option<DeviceChoice>,
}

impl Placement {
    /// Codes as they are in the file, on the CPU.
    pub const IN_PLACE: Self =
        Self { carrier: false, repack: Repack::Off, device: Some(DeviceChoice::Cpu) };
}

/// When codes are repacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Repack {
    Auto,
    On,
    Off,
}

impl Numeric {
    /// Where and how models are held.
    pub fn placement(&self) -> Placement {
        let &Self { carrier, repack, device, .. } = self;
        Placement { carrier, repack, device }
    }

    /// What the settings say, and the switches where they say nothing.
    pub fn runtime(&self) -> Result<RuntimeOptions> {
        let config = self.settings.read(Config::builder(KEYS))?;
        Ok(runtime_options(&config, &self.switches())?)
    }

    /// What the switches say alone.
    pub fn switches(&self) -> RuntimeOptions {
        let numerics = if self.exact { Numerics::Exact } else { Numerics::Fast };
        RuntimeOptions { kernel: KernelOptions { numerics, ..KernelOptions::default() } }
    }
}
