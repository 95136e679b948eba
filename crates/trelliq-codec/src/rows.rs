//! Coding of whole rows: scale, walk, packing and refit, many rows at a time.

use crate::scale::{checked_f16, row_scale};
use crate::{BlockEncoder, CodecError, ScaleRule, Trellis, code_rms, pack_block};
use half::f16;
use rayon::prelude::*;

/// Blocks that one job codes at least, so that batches are full.
const JOB_BLOCKS: usize = 8;

/// Encoder of rows of one trellis under one scale rule.
#[derive(Debug, Clone)]
pub struct RowCodec {
    blocks: BlockEncoder,
    rms: f64,
    rule: ScaleRule,
}

/// What coding gives back, for `[rows, cols]` weights.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedRows {
    /// `[rows, cols * K / 32]` packed words, row-major.
    pub words: Vec<u32>,
    /// `[rows]` stored scales.
    pub scales: Vec<f16>,
    /// `[rows, cols]` states of the walks.
    pub states: Vec<u16>,
    /// `[rows, cols]` decoded weights, `f32(value) * f32(scale)`.
    pub reconstruction: Vec<f32>,
    /// `[rows]` sums of squared differences between weights and reconstruction.
    pub squared_error: Vec<f64>,
}

/// One row's slices of the outputs.
struct RowOut<'a> {
    words: &'a mut [u32],
    scale: &'a mut f16,
    states: &'a mut [u16],
    reconstruction: &'a mut [f32],
    squared_error: &'a mut f64,
}

/// A candidate coding of one row.
struct Candidate {
    scale: f16,
    squared_error: f64,
}

/// Fails on the first weight that is NaN or infinite, with its index.
pub fn check_finite(weights: &[f32]) -> Result<(), CodecError> {
    match weights.iter().position(|w| !w.is_finite()) {
        Some(index) => Err(CodecError::NonFinite { index, value: weights[index] }),
        None => Ok(()),
    }
}

impl RowCodec {
    /// `passes`: Viterbi passes a block, 2 for Algorithm 4 (see [`BlockEncoder::new`]).
    pub fn new(trellis: Trellis, rule: ScaleRule, passes: usize) -> Result<Self, CodecError> {
        let blocks = BlockEncoder::new(trellis, passes)?;
        let rms = code_rms(blocks.values());
        Ok(Self { blocks, rms, rule })
    }

    pub fn trellis(&self) -> &Trellis {
        self.blocks.trellis()
    }

    /// The encoder of single blocks, for callers that choose scales themselves.
    pub fn block_encoder(&self) -> &BlockEncoder {
        &self.blocks
    }

    /// Codes `weights`, `[rows, cols]` row-major, on the current rayon pool. `progress` is told of
    /// weights as they are done, from any thread. The result does not depend on the thread count.
    ///
    /// Errors: a row length that T does not divide, a weight that is not finite (its index), a
    /// scale past f16 (its row). To bound memory, pass a large matrix in runs of rows.
    pub fn encode(
        &self,
        weights: &[f32],
        cols: usize,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<EncodedRows, CodecError> {
        let words_per_row = self.trellis().words_per_row(cols)?;
        if !weights.len().is_multiple_of(cols) {
            let expected = weights.len() / cols * cols;
            return Err(CodecError::Length { what: "weights", found: weights.len(), expected });
        }
        check_finite(weights)?;
        let rows = weights.len() / cols;
        let mut out = EncodedRows {
            words: vec![0; rows * words_per_row],
            scales: vec![f16::ZERO; rows],
            states: vec![0; weights.len()],
            reconstruction: vec![0.0; weights.len()],
            squared_error: vec![0.0; rows],
        };
        let job = JOB_BLOCKS.div_ceil(cols / self.trellis().block_len());
        (
            weights.par_chunks(job * cols),
            out.words.par_chunks_mut(job * words_per_row),
            out.scales.par_chunks_mut(job),
            out.states.par_chunks_mut(job * cols),
            out.reconstruction.par_chunks_mut(job * cols),
            out.squared_error.par_chunks_mut(job),
        )
            .into_par_iter()
            .enumerate()
            .try_for_each_init(
                Job::default,
                |state, (index, (weights, words, scales, states, reconstruction, errors))| {
                    let words = words.chunks_exact_mut(words_per_row);
                    let states = states.chunks_exact_mut(cols);
                    let decoded = reconstruction.chunks_exact_mut(cols);
                    let rows: Vec<RowOut> =
                        words
                            .zip(scales)
                            .zip(states)
                            .zip(decoded)
                            .zip(errors)
                            .map(|((((words, scale), states), reconstruction), squared_error)| {
                                RowOut { words, scale, states, reconstruction, squared_error }
                            })
                            .collect();
                    self.encode_job(state, index * job, weights, cols, rows)?;
                    progress(weights.len());
                    Ok(())
                },
            )?;
        Ok(out)
    }

    fn encode_job(
        &self,
        job: &mut Job,
        first_row: usize,
        weights: &[f32],
        cols: usize,
        mut out: Vec<RowOut>,
    ) -> Result<(), CodecError> {
        let trellis = self.trellis();
        let gains = self.rule.gains(trellis.code(), trellis.state_bits(), trellis.bits());
        for (pass, gain) in gains.into_iter().enumerate() {
            job.scales.clear();
            job.scaled.clear();
            for (row, weights) in weights.chunks_exact(cols).enumerate() {
                let scale = row_scale(first_row + row, rms(weights), self.rms, gain)?;
                let divisor = scale.to_f32();
                job.scales.push(scale);
                job.scaled.extend(weights.iter().map(|w| w / divisor));
            }
            job.states.resize(weights.len(), 0);
            self.blocks.encode(&job.scaled, &mut job.states)?;
            for (row, out) in out.iter_mut().enumerate() {
                let span = row * cols..(row + 1) * cols;
                let (weights, states) = (&weights[span.clone()], &job.states[span]);
                let found = self.finish(first_row + row, weights, states, job.scales[row])?;
                if pass == 0 || found.squared_error < *out.squared_error {
                    *out.scale = found.scale;
                    *out.squared_error = found.squared_error;
                    out.states.copy_from_slice(states);
                }
            }
        }
        for out in out {
            self.write(out)?;
        }
        Ok(())
    }

    /// The scale to store for a walk, and the error under it.
    fn finish(
        &self,
        row: usize,
        weights: &[f32],
        states: &[u16],
        scale: f16,
    ) -> Result<Candidate, CodecError> {
        let values = self.blocks.values();
        let scale = if self.rule.refits() { refit(row, weights, states, values)? } else { scale };
        let factor = scale.to_f32();
        let squared_error = weights
            .iter()
            .zip(states)
            .map(|(&w, &s)| {
                let error = f64::from(w) - f64::from(values[usize::from(s)] * factor);
                error * error
            })
            .sum();
        Ok(Candidate { scale, squared_error })
    }

    fn write(&self, out: RowOut) -> Result<(), CodecError> {
        let trellis = self.trellis();
        let states = out.states.chunks_exact(trellis.block_len());
        for (states, words) in states.zip(out.words.chunks_exact_mut(trellis.words_per_block())) {
            pack_block(trellis, states, words)?;
        }
        let scale = out.scale.to_f32();
        for (decoded, &state) in out.reconstruction.iter_mut().zip(out.states.iter()) {
            *decoded = self.blocks.values()[usize::from(state)] * scale;
        }
        Ok(())
    }
}

/// Scratch of one worker.
#[derive(Default)]
struct Job {
    scaled: Vec<f32>,
    states: Vec<u16>,
    scales: Vec<f16>,
}

fn rms(weights: &[f32]) -> f64 {
    let sum: f64 = weights.iter().map(|&w| f64::from(w) * f64::from(w)).sum();
    (sum / weights.len() as f64).sqrt()
}

/// Least squares: `<w, v> / <v, v>`, which is 0 for an all-zero row.
fn refit(row: usize, weights: &[f32], states: &[u16], values: &[f32]) -> Result<f16, CodecError> {
    let (mut wv, mut vv) = (0.0, 0.0);
    for (&w, &s) in weights.iter().zip(states) {
        let v = f64::from(values[usize::from(s)]);
        wv += f64::from(w) * v;
        vv += v * v;
    }
    if vv == 0.0 { Ok(f16::ZERO) } else { checked_f16(row, wv / vv) }
}

/// Decodes packed rows, `[rows, cols * K / 32]` with `[rows]` scales, to `[rows, cols]` weights
/// `f32(value) * f32(scale)`.
pub fn decode_rows(
    trellis: &Trellis,
    words: &[u32],
    scales: &[f16],
    cols: usize,
) -> Result<Vec<f32>, CodecError> {
    let words_per_row = trellis.words_per_row(cols)?;
    let expected = words_per_row * scales.len();
    if words.len() != expected {
        return Err(CodecError::Length { what: "words", found: words.len(), expected });
    }
    let values = trellis.values();
    let mut out = vec![0.0; scales.len() * cols];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        let words = &words[row * words_per_row..(row + 1) * words_per_row];
        let blocks = words.chunks_exact(trellis.words_per_block());
        for (block, out) in blocks.zip(out.chunks_exact_mut(trellis.block_len())) {
            crate::decode_block(trellis, &values, block, out)?;
        }
        out.iter_mut().for_each(|w| *w *= scales[row].to_f32());
    }
    Ok(out)
}
