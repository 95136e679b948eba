//! Causal attention with grouped queries over the cache of one sequence.

use super::cache::LayerCache;
use super::ops::{Rows, axpy, dot, matmul_nn, matmul_nt, softmax};
use rayon::prelude::*;
use std::ops::Range;

/// Queries of one task.
const QUERY_BLOCK: usize = 64;

/// What every head of a layer shares.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Factor of q . k.
    pub scale: f32,
    /// Positions that a query sees, itself included.
    pub window: Option<usize>,
}

impl Heads {
    pub fn visible(&self, position: usize) -> Range<usize> {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        first..position + 1
    }
}

/// Attention of the last `q.len() / (heads * head_dim)` tokens of a cached sequence, in place:
/// `q` holds rotated queries, `[tokens, heads, head_dim]`, and then the result in the same shape.
pub(crate) fn attend(heads: &Heads, q: &mut [f32], cache: &LayerCache) {
    let width = heads.heads * heads.head_dim;
    let tokens = q.len() / width;
    let past = cache.keys.len() / (heads.kv_heads * heads.head_dim) - tokens;
    let mut by_head = vec![0f32; q.len()];
    let queries = &*q;
    by_head.par_chunks_mut(tokens * heads.head_dim).enumerate().for_each(|(head, out)| {
        let blocks = out.par_chunks_mut(QUERY_BLOCK * heads.head_dim).enumerate();
        blocks.for_each(|(block, out)| {
            let first = block * QUERY_BLOCK;
            let count = out.len() / heads.head_dim;
            let start = first * width + head * heads.head_dim;
            let queries =
                Rows { data: &queries[start..], rows: count, cols: heads.head_dim, stride: width };
            let kv = KeysValues::new(heads, head, cache);
            if count == 1 {
                attend_one(heads, queries.data, past + first, &kv, out);
            } else {
                attend_block(heads, queries, past + first, &kv, out);
            }
        });
    });
    from_head_major(&by_head, q, heads.head_dim, tokens);
}

/// `[heads, tokens, head_dim]` to `[tokens, heads, head_dim]`.
fn from_head_major(by_head: &[f32], out: &mut [f32], head_dim: usize, tokens: usize) {
    let width = out.len() / tokens;
    for (index, row) in by_head.chunks_exact(head_dim).enumerate() {
        let (head, token) = (index / tokens, index % tokens);
        let start = token * width + head * head_dim;
        out[start..start + head_dim].copy_from_slice(row);
    }
}

/// The keys and values that one query head reads.
struct KeysValues<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    offset: usize,
    stride: usize,
    head_dim: usize,
}

impl<'a> KeysValues<'a> {
    fn new(heads: &Heads, head: usize, cache: &'a LayerCache) -> Self {
        let kv_head = head / (heads.heads / heads.kv_heads);
        Self {
            keys: &cache.keys,
            values: &cache.values,
            offset: kv_head * heads.head_dim,
            stride: heads.kv_heads * heads.head_dim,
            head_dim: heads.head_dim,
        }
    }

    fn row<'b>(&self, data: &'b [f32], position: usize) -> &'b [f32] {
        let start = position * self.stride + self.offset;
        &data[start..start + self.head_dim]
    }

    fn rows<'b>(&self, data: &'b [f32], positions: Range<usize>) -> Rows<'b> {
        Rows {
            data: &data[positions.start * self.stride + self.offset..],
            rows: positions.len(),
            cols: self.head_dim,
            stride: self.stride,
        }
    }
}

fn attend_one(heads: &Heads, query: &[f32], position: usize, kv: &KeysValues, out: &mut [f32]) {
    let visible = heads.visible(position);
    let query = &query[..heads.head_dim];
    let mut weights: Vec<f32> =
        visible.clone().map(|p| heads.scale * dot(query, kv.row(kv.keys, p))).collect();
    softmax(&mut weights);
    for (position, weight) in visible.zip(weights) {
        axpy(weight, kv.row(kv.values, position), out);
    }
}

fn attend_block(heads: &Heads, queries: Rows, first: usize, kv: &KeysValues, out: &mut [f32]) {
    let span = heads.visible(first).start..first + queries.rows;
    let mut weights = vec![0f32; queries.rows * span.len()];
    matmul_nt(heads.scale, queries, kv.rows(kv.keys, span.clone()), &mut weights);
    for (i, row) in weights.chunks_exact_mut(span.len()).enumerate() {
        let visible = heads.visible(first + i);
        let (low, high) = (visible.start - span.start, visible.end - span.start);
        row[..low].fill(0.0);
        row[high..].fill(0.0);
        softmax(&mut row[low..high]);
    }
    matmul_nn(Rows::dense(&weights, span.len()), kv.rows(kv.values, span.clone()), out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, step: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * step).sin()).collect()
    }

    /// One query against the definition in f64.
    fn reference(
        heads: &Heads,
        q: &[f32],
        cache: &LayerCache,
        token: usize,
        head: usize,
    ) -> Vec<f64> {
        let (dim, stride) = (heads.head_dim, heads.kv_heads * heads.head_dim);
        let tokens = q.len() / (heads.heads * dim);
        let position = cache.keys.len() / stride - tokens + token;
        let first = heads.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let kv = head * heads.kv_heads / heads.heads * dim;
        let q = &q[(token * heads.heads + head) * dim..][..dim];
        let score = |p: usize| -> f64 {
            let key = &cache.keys[p * stride + kv..][..dim];
            let sum: f64 = q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            (f64::from(heads.scale) * sum).exp()
        };
        let total: f64 = (first..=position).map(score).sum();
        let value = |p: usize, i: usize| f64::from(cache.values[p * stride + kv + i]);
        (0..dim)
            .map(|i| (first..=position).map(|p| score(p) * value(p, i)).sum::<f64>() / total)
            .collect()
    }

    #[test]
    fn agrees_with_the_definition() {
        for (tokens, past, window) in
            [(1, 0, None), (1, 40, Some(7)), (5, 3, None), (130, 9, None), (130, 9, Some(70))]
        {
            let heads = Heads { heads: 4, kv_heads: 2, head_dim: 6, scale: 0.4, window };
            let q = values(tokens * 24, 0.31);
            let n = (tokens + past) * 12;
            let cache = LayerCache { keys: values(n, 0.77), values: values(n, 1.9) };
            let mut out = q.clone();
            attend(&heads, &mut out, &cache);
            for token in 0..tokens {
                for head in 0..4 {
                    let expected = reference(&heads, &q, &cache, token, head);
                    let found = &out[(token * 4 + head) * 6..][..6];
                    for (a, b) in found.iter().zip(expected) {
                        assert!((f64::from(*a) - b).abs() < 1e-5, "{tokens} {token} {head}");
                    }
                }
            }
        }
    }
}
