//! Working memory of one thread.

use super::lanes::{Lanes, RUN};

#[derive(Default)]
pub(super) struct Job {
    /// Loaded blocks.
    pub words: Vec<Lanes<u32>>,
    /// Decoded runs.
    pub runs: Vec<Lanes<f32>>,
    /// Sums, a lane a stored row.
    pub acc: Vec<Lanes<f32>>,
    /// Scaled activations.
    pub x: Vec<Lanes<f32>>,
    /// Decoded tiles.
    pub dense: Vec<f32>,
    /// Output tiles that are still to be combined.
    pub sums: Vec<f32>,
    /// A partial sum that is to be folded.
    pub part: Vec<f32>,
}

/// Room for the decoded runs of `groups` groups.
pub(super) fn run_room(runs: &mut Vec<Lanes<f32>>, groups: usize) -> &mut [Lanes<f32>] {
    crate::options::sized(runs, groups * RUN)
}
