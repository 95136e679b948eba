//! One figure, and what it is compared with.

use super::From;
use clap::ValueEnum;
use serde::Serialize;
use trelliq_kernels::Axis;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum What {
    Scatter,
    Reduce,
    GateUp,
    Prefill,
    Encode,
    Prompt,
    Decode,
}

impl What {
    /// What multiplies by layers, and along which axis these are coded.
    pub const LAYERS: [(Self, Axis); 6] = [
        (Self::Scatter, Axis::Out),
        (Self::Reduce, Axis::In),
        (Self::GateUp, Axis::Out),
        (Self::GateUp, Axis::In),
        (Self::Prefill, Axis::Out),
        (Self::Prefill, Axis::In),
    ];

    pub fn of_model(self) -> bool {
        matches!(self, Self::Prompt | Self::Decode)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Scatter => "scatter",
            Self::Reduce => "reduce",
            Self::GateUp => "gate_up",
            Self::Prefill => "prefill",
            Self::Encode => "encode",
            Self::Prompt => "prompt",
            Self::Decode => "decode",
        }
    }
}

/// A row of the table.
#[derive(Debug, Serialize)]
pub struct Row {
    pub what: What,
    pub device: &'static str,
    pub isa: &'static str,
    pub threads: usize,
    /// K, L and the format's number of the axis; null for whole models.
    pub bits: Option<u32>,
    pub state_bits: Option<u32>,
    /// Rows of x, tokens of a prompt, or sequences.
    pub m: usize,
    pub axis: Option<u8>,
    /// Outputs and inputs of the layer.
    pub rows: Option<usize>,
    pub cols: Option<usize>,
    /// `int`, `f32` or `exact`.
    pub numerics: &'static str,
    pub from: Option<From>,
    /// Median of the repetitions.
    pub value: f64,
    /// The fastest of them.
    pub best: f64,
    pub unit: &'static str,
    /// `value` over `threads`.
    pub per_core: f64,
    /// 10^9 bytes of codes a second.
    pub coded_gb_per_s: Option<f64>,
    pub compared_with: Option<Comparison>,
}

/// A figure of the same run.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
    /// This row's figure in that unit over `value`.
    pub ratio: f64,
}
