//! The bodies of the kernels, written once and compiled per instruction set (`kernels.rs`).

use super::lanes::{LANES, Lanes, Run};
use half::bf16;

/// `a * b + c`, fused where the instruction set has that.
#[inline(always)]
fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn accumulate<const FMA: bool>(acc: &mut Lanes<f32>, a: &Lanes<f32>, b: f32) {
    for lane in 0..LANES {
        acc.0[lane] = multiply_add::<FMA>(a.0[lane], b, acc.0[lane]);
    }
}

/// How a decoded number becomes a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Weighing {
    /// Times a factor that holds scale and divisor: within an ulp or two of `fast`.
    Folded,
    /// `f32(number / divisor) * scale`, the `fast` numerics to the last bit.
    Fast { divisor: f32 },
    /// The same rounded to bf16: the `exact` numerics.
    Exact { divisor: f32 },
}

/// Numbers of a run to weights; `scales` belong to the lanes.
#[inline(always)]
pub(super) fn weigh<const FMA: bool>(
    run: &mut [Lanes<f32>],
    scales: &Lanes<f32>,
    weighing: Weighing,
) {
    match weighing {
        Weighing::Folded => run.iter_mut().for_each(|v| *v = v.map2(*scales, |v, s| v * s)),
        Weighing::Fast { divisor } => {
            let divide = Division::<FMA>::by(divisor);
            run.iter_mut().for_each(|v| *v = v.map2(*scales, |v, s| divide.of(v) * s));
        }
        Weighing::Exact { divisor } => {
            let divide = Division::<FMA>::by(divisor);
            let round = |v: f32, s: f32| round_to_bf16(divide.of(v) * s);
            run.iter_mut().for_each(|v| *v = v.map2(*scales, round));
        }
    }
}

/// Division by a constant. With fused multiply-adds a product with the reciprocal is corrected by
/// its remainder (Markstein), which rounds as a division does for every number of the codes, at a
/// fifth of its price; the tests compare all of them.
struct Division<const FMA: bool> {
    divisor: f32,
    reciprocal: f32,
}

impl<const FMA: bool> Division<FMA> {
    #[inline(always)]
    fn by(divisor: f32) -> Self {
        Self { divisor, reciprocal: 1.0 / divisor }
    }

    #[inline(always)]
    fn of(&self, number: f32) -> f32 {
        if FMA {
            let quotient = number * self.reciprocal;
            let remainder = (-quotient).mul_add(self.divisor, number);
            remainder.mul_add(self.reciprocal, quotient)
        } else {
            number / self.divisor
        }
    }
}

/// `bf16::from_f32` and back for numbers that are not NaN, without its branches.
#[inline(always)]
fn round_to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) & 0xFFFF_0000;
    debug_assert_eq!(f32::from_bits(rounded), bf16::from_f32(value).to_f32());
    f32::from_bits(rounded)
}

/// `acc[m] += sum over i of run[i] * x[m * stride + i]` for M rows of x: the weights are read once.
/// Even and odd positions are summed apart, which hides the latency of an addition where M is 1; the
/// order is the same for every M.
#[inline(always)]
pub(super) fn reduce<const M: usize, const FMA: bool>(
    run: &[Lanes<f32>],
    x: &[f32],
    stride: usize,
    acc: &mut [Lanes<f32>],
) {
    let x: [&[f32]; M] = std::array::from_fn(|m| &x[m * stride..][..run.len()]);
    let mut sums = [[Lanes::ZERO; 2]; M];
    let (pairs, last) = run.as_chunks::<2>();
    for (i, pair) in pairs.iter().enumerate() {
        for m in 0..M {
            accumulate::<FMA>(&mut sums[m][0], &pair[0], x[m][2 * i]);
            accumulate::<FMA>(&mut sums[m][1], &pair[1], x[m][2 * i + 1]);
        }
    }
    for weights in last {
        for m in 0..M {
            accumulate::<FMA>(&mut sums[m][0], weights, x[m][run.len() - 1]);
        }
    }
    for (acc, [even, odd]) in acc.iter_mut().zip(sums) {
        *acc = acc.add(even.add(odd));
    }
}

/// `acc[i] += sum over g of runs[g][i] * x[g]`, lane by lane, for G groups of sixteen rows: the sums
/// in memory are touched once for all of them. Straight-line, because in a loop over positions the
/// compiler makes vectors of positions, with gathers.
#[inline(always)]
pub(super) fn scatter<const G: usize, const FMA: bool>(
    runs: &[Run],
    x: &[Lanes<f32>],
    acc: &mut Run,
) {
    let runs: &[Run; G] = runs.try_into().expect("G groups");
    let x: &[Lanes<f32>; G] = x.try_into().expect("G groups");
    macro_rules! positions {
        ($($i:literal)*) => { $( scatter_position::<$i, G, FMA>(runs, x, acc); )* };
    }
    positions!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
}

#[inline(always)]
fn scatter_position<const I: usize, const G: usize, const FMA: bool>(
    runs: &[Run; G],
    x: &[Lanes<f32>; G],
    acc: &mut Run,
) {
    let mut sum = acc[I];
    for g in 0..G {
        let (weights, x) = (&runs[g][I].0, &x[g].0);
        for lane in 0..LANES {
            sum.0[lane] = multiply_add::<FMA>(weights[lane], x[lane], sum.0[lane]);
        }
    }
    acc[I] = sum;
}

/// `out[i] += sum of the lanes of acc[i]`.
#[inline(always)]
pub(super) fn fold(acc: &[Lanes<f32>], out: &mut [f32]) {
    for (out, acc) in out.iter_mut().zip(acc) {
        *out += acc.sum();
    }
}

/// Rows of 8-bit numbers in affine groups: `w = offset + scale * q`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quants<'a> {
    pub bytes: &'a [u8],
    /// (scale, offset) of each group.
    pub affine: &'a [(f32, f32)],
    /// Numbers that share one scale and offset; the last group of a row may be shorter.
    pub group: usize,
}

/// One row of 8-bit numbers against one row of x; `sums` are x's sums by group.
#[inline(always)]
pub(super) fn dot_bytes<const FMA: bool>(row: Quants<'_>, x: &[f32], sums: &[f32]) -> f32 {
    let (mut acc, mut rest) = (Lanes::ZERO, 0.0);
    let groups = row.bytes.chunks(row.group).zip(x.chunks(row.group));
    for ((bytes, x), (&(scale, offset), sum)) in groups.zip(row.affine.iter().zip(sums)) {
        let mut dot = Lanes::ZERO;
        let (bytes, tail) = bytes.as_chunks::<LANES>();
        let (x, x_tail) = x.as_chunks::<LANES>();
        for (q, x) in bytes.iter().zip(x) {
            for lane in 0..LANES {
                dot.0[lane] = multiply_add::<FMA>(f32::from(q[lane]), x[lane], dot.0[lane]);
            }
        }
        accumulate::<FMA>(&mut acc, &dot, scale);
        let tail: f32 = tail.iter().zip(x_tail).map(|(&q, x)| f32::from(q) * x).sum();
        rest += scale * tail + offset * sum;
    }
    acc.sum() + rest
}

/// The orthonormal Hadamard transform of consecutive blocks; `block` is a power of two that divides
/// the length.
#[inline(always)]
pub(super) fn hadamard(x: &mut [f32], block: usize) {
    let norm = 1.0 / (block as f32).sqrt();
    for chunk in x.chunks_exact_mut(block) {
        let (vectors, rest) = chunk.as_chunks_mut::<LANES>();
        for v in vectors {
            butterflies_inside(v);
        }
        let start = if rest.is_empty() { LANES } else { 1 };
        let mut half = start;
        while half < block {
            for pair in chunk.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        chunk.iter_mut().for_each(|v| *v *= norm);
    }
}

/// The four steps whose partners lie in one vector, as shuffles: `v[i ^ half] +- v[i]`.
#[inline(always)]
fn butterflies_inside(v: &mut [f32; LANES]) {
    macro_rules! step {
        ($half:literal) => {
            let from = *v;
            for i in 0..LANES {
                let sign = if i & $half == 0 { 1.0 } else { -1.0 };
                v[i] = from[i ^ $half] + sign * from[i];
            }
        };
    }
    step!(1);
    step!(2);
    step!(4);
    step!(8);
}

#[cfg(test)]
mod tests {
    use super::Division;
    use trelliq_codec::ONE_MAD_DIVISOR;

    #[test]
    fn division_by_the_divisor_of_1mad_rounds_correctly() {
        let divide = Division::<true>::by(ONE_MAD_DIVISOR);
        for integer in -510..=510 {
            let number = integer as f32;
            assert_eq!(divide.of(number), number / ONE_MAD_DIVISOR, "{integer}");
        }
    }
}
