//! Rotary position embedding (<https://arxiv.org/abs/2104.09864>), halves convention: element i
//! of a head is rotated together with element i + head_dim / 2.

use crate::config::Rope;

/// Cosines and sines for the tokens of one step.
pub(crate) struct RotaryTable {
    /// `[tokens, head_dim / 2]`, (cos, sin).
    turns: Vec<(f32, f32)>,
    pairs: usize,
}

impl RotaryTable {
    pub fn new(rope: &Rope, head_dim: usize, positions: &[usize]) -> Self {
        let frequencies = rope.inverse_frequencies(head_dim);
        let turn = |position: usize, frequency: &f32| {
            let (sin, cos) = (position as f32 * frequency).sin_cos();
            (cos, sin)
        };
        let turns = positions
            .iter()
            .flat_map(|position| frequencies.iter().map(|f| turn(*position, f)))
            .collect();
        Self { turns, pairs: head_dim / 2 }
    }

    /// Rotates every head of `x`, `[tokens, heads, head_dim]`.
    pub fn rotate(&self, x: &mut [f32], heads: usize) {
        self.turn(x, heads, 1.0);
    }

    /// Undoes [`rotate`](Self::rotate).
    pub fn rotate_back(&self, x: &mut [f32], heads: usize) {
        self.turn(x, heads, -1.0);
    }

    fn turn(&self, x: &mut [f32], heads: usize, direction: f32) {
        let rows = x.chunks_exact_mut(heads * 2 * self.pairs);
        for (row, turns) in rows.zip(self.turns.chunks_exact(self.pairs)) {
            for head in row.chunks_exact_mut(2 * self.pairs) {
                let (low, high) = head.split_at_mut(self.pairs);
                for ((a, b), (cos, sin)) in low.iter_mut().zip(high).zip(turns) {
                    let sin = direction * sin;
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RopeScaling;

    #[test]
    fn pairs_turn_by_position_times_frequency() {
        let rope = Rope { theta: 100.0, scaling: RopeScaling::None };
        let table = RotaryTable::new(&rope, 4, &[3]);
        let mut x = [1.0, 0.0, 0.0, 1.0];
        table.rotate(&mut x, 1);
        let (fast, slow) = (3f32, 0.3f32);
        let expected = [fast.cos(), -slow.sin(), fast.sin(), slow.cos()];
        for (x, expected) in x.iter().zip(expected) {
            assert!((x - expected).abs() < 1e-6, "{x} {expected}");
        }
    }
}
