//! Working memory of one thread.

use super::lanes::{Lanes, Run};

#[derive(Default)]
pub(super) struct Job {
    /// Loaded blocks.
    pub words: Vec<Lanes<u32>>,
    /// Decoded runs.
    pub runs: Vec<Run>,
    /// Sums, a lane a stored row.
    pub acc: Vec<Lanes<f32>>,
    /// Integer sums, a lane a stored row.
    pub int_acc: Vec<Lanes<u32>>,
    /// Sums of runs, a lane a stored row.
    pub run_acc: Vec<Run>,
    /// Scaled activations.
    pub x: Vec<Lanes<f32>>,
    /// Decoded tiles.
    pub dense: Vec<f32>,
    /// Output tiles that are still to be combined.
    pub sums: Vec<f32>,
    /// A partial sum that is to be folded.
    pub part: Vec<f32>,
}
