//! The way back through the causal attention of one whole sequence.

use super::Heads;
use crate::decoder::ops::{Rows, add_matmul_tn, matmul_nn, matmul_nt, softmax};
use rayon::prelude::*;

/// One query head's view of `[tokens, heads, head_dim]`.
fn head<'a>(data: &'a [f32], index: usize, heads: usize, head_dim: usize) -> Rows<'a> {
    let stride = heads * head_dim;
    let rows = data.len() / stride;
    Rows { data: &data[index * head_dim..], rows, cols: head_dim, stride }
}

/// `[tokens, tokens]` weights of a head: the softmax over what each query sees, 0 elsewhere.
fn weights(heads: &Heads, q: Rows, k: Rows) -> Vec<f32> {
    let tokens = q.rows;
    let mut weights = vec![0.0f32; tokens * tokens];
    matmul_nt(heads.scale, q, k, &mut weights);
    for (position, row) in weights.chunks_exact_mut(tokens).enumerate() {
        let visible = heads.visible(position);
        row[..visible.start].fill(0.0);
        row[visible.end..].fill(0.0);
        softmax(&mut row[visible]);
    }
    weights
}

/// Gradients of one key and value head and of the queries that read it, each `[tokens, head_dim]`.
struct KvHead {
    at_q: Vec<Vec<f32>>,
    at_k: Vec<f32>,
    at_v: Vec<f32>,
}

/// Gradients at q, k and v from that at the result.
pub(crate) fn backward(
    heads: &Heads,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    gradient: &[f32],
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let dim = heads.head_dim;
    let group = heads.heads / heads.kv_heads;
    let results: Vec<KvHead> = (0..heads.kv_heads)
        .into_par_iter()
        .map(|kv| {
            let k = head(k, kv, heads.kv_heads, dim);
            let v = head(v, kv, heads.kv_heads, dim);
            let mut at_q = Vec::with_capacity(group);
            let (mut at_k, mut at_v) = (vec![0.0; k.rows * dim], vec![0.0; k.rows * dim]);
            for index in kv * group..(kv + 1) * group {
                let q = head(q, index, heads.heads, dim);
                let gradient = head(gradient, index, heads.heads, dim);
                at_q.push(head_backward(heads, [q, k, v], gradient, &mut at_k, &mut at_v));
            }
            KvHead { at_q, at_k, at_v }
        })
        .collect();
    let mut at_q = Vec::with_capacity(heads.heads);
    let (mut at_k, mut at_v) = (Vec::new(), Vec::new());
    for head in results {
        at_q.extend(head.at_q);
        at_k.push(head.at_k);
        at_v.push(head.at_v);
    }
    (interleave(&at_q, dim), interleave(&at_k, dim), interleave(&at_v, dim))
}

/// One query head: returns the gradient at q and adds those at k and v.
fn head_backward(
    heads: &Heads,
    [q, k, v]: [Rows; 3],
    gradient: Rows,
    at_k: &mut [f32],
    at_v: &mut [f32],
) -> Vec<f32> {
    let tokens = q.rows;
    let weights = weights(heads, q, k);
    add_matmul_tn(Rows::dense(&weights, tokens), gradient, at_v);
    let mut at_scores = vec![0.0f32; tokens * tokens];
    matmul_nt(1.0, gradient, v, &mut at_scores);
    for (scores, weights) in at_scores.chunks_exact_mut(tokens).zip(weights.chunks_exact(tokens)) {
        let mean: f32 = scores.iter().zip(weights).map(|(s, w)| s * w).sum();
        for (s, w) in scores.iter_mut().zip(weights) {
            *s = heads.scale * w * (*s - mean);
        }
    }
    let mut at_q = vec![0.0f32; tokens * heads.head_dim];
    matmul_nn(Rows::dense(&at_scores, tokens), k, &mut at_q);
    add_matmul_tn(Rows::dense(&at_scores, tokens), q, at_k);
    at_q
}

/// `[heads][tokens, head_dim]` to `[tokens, heads, head_dim]`.
fn interleave(by_head: &[Vec<f32>], dim: usize) -> Vec<f32> {
    let width = by_head.len() * dim;
    let mut out = vec![0.0; by_head.len() * by_head[0].len()];
    for (index, values) in by_head.iter().enumerate() {
        for (row, values) in out.chunks_exact_mut(width).zip(values.chunks_exact(dim)) {
            row[index * dim..(index + 1) * dim].copy_from_slice(values);
        }
    }
    out
}
