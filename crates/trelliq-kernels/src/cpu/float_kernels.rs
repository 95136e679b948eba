//! Byte sums times f32 activations: the same decoder and arrangement as the integer kernels', and
//! two floats made of each lane of sums. A weight costs less than in the kernels that decode to floats
//! at once, since the hash works on twice as many.
//!
//! Sums of a row of x are added in one order, whatever M is.

use super::int_kernels::{HALF, Sums, positions};
use super::lanes::Lanes;
use super::quantized::{GROUP_VECTORS, Grouped};
use super::simd::Floats;

/// Rows of x that share the floats made of a sum.
const ROWS: usize = 4;

/// `out[m][i] += sum over the group's rows of y(row, i) x(m, row)` for sixteen positions, rows of `out`
/// `pitch` apart; y are the integers of `1mad`.
#[inline(always)]
pub(super) fn scatter<S: Floats>(
    simd: S,
    sums: &Sums,
    x: &Grouped<'_>,
    group: usize,
    out: &mut [f32],
    pitch: usize,
) {
    let mut m = 0;
    while m + ROWS <= x.m {
        scatter_rows::<S, ROWS>(simd, sums, x, group, m, &mut out[m * pitch..], pitch);
        m += ROWS;
    }
    while m < x.m {
        scatter_rows::<S, 1>(simd, sums, x, group, m, &mut out[m * pitch..], pitch);
        m += 1;
    }
}

#[inline(always)]
fn scatter_rows<S: Floats, const M: usize>(
    simd: S,
    sums: &Sums,
    x: &Grouped<'_>,
    group: usize,
    m: usize,
    out: &mut [f32],
    pitch: usize,
) {
    let x: [_; M] = std::array::from_fn(|i| x.vectors(m + i, group * GROUP_VECTORS, GROUP_VECTORS));
    let mut acc = [[simd.zero(); HALF]; M];
    // A loop, not unrolled: floats of all positions would be made before the loop over rows of x, and
    // spilled.
    for position in 0..HALF {
        // Two chains a row, since each would wait for itself.
        let mut low = [simd.zero(); M];
        let mut high = [simd.zero(); M];
        for (vector, sums) in sums.iter().enumerate().take(x[0].len()) {
            for part in 0..S::PARTS {
                let sums = simd.load(&sums[position], part);
                let (even, odd) = (simd.low_floats(sums), simd.high_floats(sums));
                let lanes = part * S::WIDTH..(part + 1) * S::WIDTH;
                for i in 0..M {
                    let [a, b] = &x[i][vector];
                    low[i] = simd.multiply_add(even, simd.load_f32(&a.0[lanes.clone()]), low[i]);
                    high[i] = simd.multiply_add(odd, simd.load_f32(&b.0[lanes.clone()]), high[i]);
                }
            }
        }
        for i in 0..M {
            acc[i][position] = simd.add(low[i], high[i]);
        }
    }
    for (acc, out) in acc.iter().zip(out.chunks_mut(pitch)) {
        let mut totals = [0.0; HALF];
        simd.fold_floats(acc, &mut totals);
        for (out, total) in out[..HALF].iter_mut().zip(totals) {
            *out += total;
        }
    }
}

/// Adds the products of `count` runs of sixteen rows, the first at vector `first` of x, to `totals`, lanes
/// of rows, for every row of x.
#[inline(always)]
pub(super) fn reduce<S: Floats>(
    simd: S,
    sums: &Sums,
    count: usize,
    x: &Grouped<'_>,
    first: usize,
    totals: &mut [Lanes<f32>],
) {
    let mut m = 0;
    let (fours, rest) = totals.as_chunks_mut::<ROWS>();
    for totals in fours {
        reduce_rows(simd, sums, count, x, m, first, totals);
        m += ROWS;
    }
    for total in rest {
        reduce_rows(simd, sums, count, x, m, first, std::array::from_mut(total));
        m += 1;
    }
}

#[inline(always)]
fn reduce_rows<S: Floats, const M: usize>(
    simd: S,
    sums: &Sums,
    count: usize,
    x: &Grouped<'_>,
    m: usize,
    first: usize,
    totals: &mut [Lanes<f32>; M],
) {
    let x: [_; M] = std::array::from_fn(|i| x.vectors(m + i, first, count));
    for part in 0..S::PARTS {
        let mut low = [simd.zero(); M];
        let mut high = [simd.zero(); M];
        for (vector, sums) in sums.iter().enumerate().take(x[0].len()) {
            positions!(I => {
                let sums = simd.load(&sums[I], part);
                let (even, odd) = (simd.low_floats(sums), simd.high_floats(sums));
                for i in 0..M {
                    let [a, b] = &x[i][vector];
                    low[i] = simd.multiply_add(even, simd.splat_f32(a.0[I]), low[i]);
                    high[i] = simd.multiply_add(odd, simd.splat_f32(b.0[I]), high[i]);
                }
            });
        }
        for (i, total) in totals.iter_mut().enumerate() {
            let total = &mut total.0[part * S::WIDTH..(part + 1) * S::WIDTH];
            let sum = simd.add(simd.load_f32(total), simd.add(low[i], high[i]));
            simd.store_f32(sum, total);
        }
    }
}
