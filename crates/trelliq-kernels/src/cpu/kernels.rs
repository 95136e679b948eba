//! The dispatch table: every kernel, compiled for every instruction set, chosen once a call.

use super::Isa;
use super::decode::{self, DecodeAnyFn, DecodeFn, OneMad, States, Table, ThreeInst};
use super::dense::{self, DenseRows};
use super::float_kernels;
use super::generic::{self, Quants, Weighing};
use super::int_kernels::{self, GroupWords, Sums};
use super::lanes::{LANES, Lanes, Run};
use super::quantized::{Grouped, Quantized};
use super::simd;
use trelliq_codec::{Code, Trellis};

/// Rows of x that one pass of [`Kernels::reduce`] can take: the index is log2.
type ReduceFn = unsafe fn(&[Lanes<f32>], &[f32], usize, &mut [Lanes<f32>]);
type ScatterFn = unsafe fn(&[Run], &[Lanes<f32>], &mut Run);
type IntDecodeFn = unsafe fn(GroupWords<'_>, &mut Sums);
type IntScatterFn = unsafe fn(&Sums, &Quantized<'_>, usize, &mut [f32], usize);
type IntReduceFn =
    unsafe fn(&Sums, usize, &Quantized<'_>, usize, &mut [Lanes<u32>], &mut [Lanes<f32>]);

type FloatScatterFn = unsafe fn(&Sums, &Grouped<'_>, usize, &mut [f32], usize);
type FloatReduceFn = unsafe fn(&Sums, usize, &Grouped<'_>, usize, &mut [Lanes<f32>]);

/// Most groups of sixteen rows that one pass of [`Kernels::scatter`] takes.
pub(super) const SCATTER_GROUPS: usize = 4;

/// The kernels of one instruction set. Bodies and meanings are in `generic.rs` and `decode.rs`.
///
/// Every pointer may be called on a machine where [`Isa::available`] holds for `isa`, which
/// [`kernels`] makes sure of before it hands the table out.
pub(super) struct Kernels {
    /// Rows of x that fit the registers beside the weights.
    pub reduce_rows: usize,
    /// By variant of the code, then K - 1. The table of values, a code for validation, has none: its loads are
    /// not made faster by unrolled shifts.
    decode: [[DecodeFn; 8]; 3],
    decode_any: [DecodeAnyFn; 4],
    transpose: unsafe fn(&[&[u32]; LANES], &mut [Lanes<u32>]),
    weigh: unsafe fn(&mut [Lanes<f32>], &Lanes<f32>, Weighing),
    reduce: [ReduceFn; 4],
    scatter: [ScatterFn; SCATTER_GROUPS],
    fold: unsafe fn(&[Lanes<f32>], &mut [f32]),
    /// By whether states have more than 12 bits, then K - 1.
    int_decode: [[IntDecodeFn; 8]; 2],
    int_scatter: IntScatterFn,
    int_reduce: IntReduceFn,
    float_scatter: FloatScatterFn,
    float_reduce: FloatReduceFn,
    dense_rows: unsafe fn(DenseRows<'_>, &[f32], usize, &mut [f32]),
    dot_bytes: unsafe fn(Quants<'_>, &[f32], &[f32]) -> f32,
    hadamard: unsafe fn(&mut [f32], usize),
}

/// The decoders of one code and K.
#[derive(Clone, Copy)]
pub(super) struct Decoders {
    run: Option<DecodeFn>,
    any: DecodeAnyFn,
}

impl Decoders {
    /// One run of 32 positions of K bits; `words` are its K words and the next.
    pub fn run(&self, words: &[Lanes<u32>], bits: usize, states: States<'_>, run: &mut Run) {
        match self.run {
            // SAFETY: the table this comes from was handed out for an available instruction set.
            Some(kernel) => unsafe { kernel(words, states, run) },
            None => self.any(words, 0, bits, states, run),
        }
    }

    /// See [`decode::decode_any`].
    pub fn any(
        &self,
        words: &[Lanes<u32>],
        first_bit: usize,
        bits: usize,
        states: States<'_>,
        run: &mut [Lanes<f32>],
    ) {
        // SAFETY: as in `run`.
        unsafe { (self.any)(words, first_bit, bits, states, run) }
    }
}

/// The integer decoder of one L and K.
#[derive(Clone, Copy)]
pub(super) struct IntDecoder(IntDecodeFn);

impl IntDecoder {
    /// See [`int_kernels::decode`].
    pub fn decode(&self, group: GroupWords<'_>, sums: &mut Sums) {
        // SAFETY: the table this comes from was handed out for an available instruction set.
        unsafe { (self.0)(group, sums) }
    }
}

// SAFETY (all methods): the table was handed out for an available instruction set.
impl Kernels {
    pub fn decoders(&self, trellis: &Trellis) -> Decoders {
        let variant = match (trellis.code(), trellis.state_bits()) {
            (Code::OneMad, ..=12) => 0,
            (Code::OneMad, _) => 1,
            (Code::ThreeInst, _) => 2,
            _ => 3,
        };
        let run = self.decode.get(variant).map(|by_bits| by_bits[trellis.bits() as usize - 1]);
        Decoders { run, any: self.decode_any[variant] }
    }

    /// For `1mad`.
    pub fn int_decoder(&self, trellis: &Trellis) -> IntDecoder {
        let wide = usize::from(trellis.state_bits() > 12);
        IntDecoder(self.int_decode[wide][trellis.bits() as usize - 1])
    }

    /// See [`int_kernels::scatter`].
    pub fn int_scatter(
        &self,
        sums: &Sums,
        x: &Quantized<'_>,
        group: usize,
        out: &mut [f32],
        pitch: usize,
    ) {
        // SAFETY: see the impl.
        unsafe { (self.int_scatter)(sums, x, group, out, pitch) }
    }

    /// See [`int_kernels::reduce`].
    pub fn int_reduce(
        &self,
        sums: &Sums,
        count: usize,
        x: &Quantized<'_>,
        first: usize,
        acc: &mut [Lanes<u32>],
        totals: &mut [Lanes<f32>],
    ) {
        // SAFETY: see the impl.
        unsafe { (self.int_reduce)(sums, count, x, first, acc, totals) }
    }

    /// See [`float_kernels::scatter`].
    pub fn float_scatter(
        &self,
        sums: &Sums,
        x: &Grouped<'_>,
        group: usize,
        out: &mut [f32],
        pitch: usize,
    ) {
        // SAFETY: see the impl.
        unsafe { (self.float_scatter)(sums, x, group, out, pitch) }
    }

    /// See [`float_kernels::reduce`].
    pub fn float_reduce(
        &self,
        sums: &Sums,
        count: usize,
        x: &Grouped<'_>,
        first: usize,
        totals: &mut [Lanes<f32>],
    ) {
        // SAFETY: see the impl.
        unsafe { (self.float_reduce)(sums, count, x, first, totals) }
    }

    pub fn transpose(&self, rows: &[&[u32]; LANES], out: &mut [Lanes<u32>]) {
        // SAFETY: see the impl.
        unsafe { (self.transpose)(rows, out) }
    }

    pub fn weigh(&self, run: &mut [Lanes<f32>], scales: &Lanes<f32>, weighing: Weighing) {
        // SAFETY: see the impl.
        unsafe { (self.weigh)(run, scales, weighing) }
    }

    /// All rows of x against one run: `x` starts at the run's first position, rows `stride` apart,
    /// one sum a row in `acc`.
    pub fn reduce(&self, run: &[Lanes<f32>], x: &[f32], stride: usize, acc: &mut [Lanes<f32>]) {
        let mut done = 0;
        while done < acc.len() {
            let take = self.reduce_rows.min(acc.len() - done).ilog2();
            let kernel = self.reduce[take as usize];
            // SAFETY: see the impl.
            unsafe { kernel(run, &x[done * stride..], stride, &mut acc[done..]) };
            done += 1 << take;
        }
    }

    /// See [`generic::scatter`]; takes up to [`SCATTER_GROUPS`] runs, as many vectors of x for each
    /// of the sums in `acc`.
    pub fn scatter(&self, runs: &[Run], x: &[Lanes<f32>], acc: &mut [Run]) {
        let kernel = self.scatter[runs.len() - 1];
        for (x, acc) in x.chunks_exact(runs.len()).zip(acc) {
            // SAFETY: see the impl.
            unsafe { kernel(runs, x, acc) }
        }
    }

    pub fn fold(&self, acc: &[Lanes<f32>], out: &mut [f32]) {
        // SAFETY: see the impl.
        unsafe { (self.fold)(acc, out) }
    }

    pub fn dense_rows(&self, weight: DenseRows<'_>, x: &[f32], m: usize, y: &mut [f32]) {
        // SAFETY: see the impl.
        unsafe { (self.dense_rows)(weight, x, m, y) }
    }

    pub fn dot_bytes(&self, row: Quants<'_>, x: &[f32], sums: &[f32]) -> f32 {
        // SAFETY: see the impl.
        unsafe { (self.dot_bytes)(row, x, sums) }
    }

    pub fn hadamard(&self, x: &mut [f32], block: usize) {
        // SAFETY: see the impl.
        unsafe { (self.hadamard)(x, block) }
    }
}

/// The table of [`Isa::chosen`].
pub(super) fn kernels(isa: Option<Isa>) -> &'static Kernels {
    match Isa::chosen(isa) {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => &avx512_vnni::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::KERNELS,
        _ => &baseline::KERNELS,
    }
}

/// The integer decoders of K = 1..=8, named by what is in scope.
macro_rules! int_decoders {
    ($wide:literal, $($k:literal)*) => { [$( int_decode::<$k, $wide> ),*] };
}

macro_rules! compile {
    ($module:ident, fma: $fma:expr, reduce_rows: $rows:literal, simd: $simd:expr $(, features: $features:literal)?) => {
        mod $module {
            use super::*;

            const FMA: bool = $fma;

            $(#[target_feature(enable = $features)])?
            fn decode<const K: usize, D: decode::Decoder>(
                words: &[Lanes<u32>],
                states: States<'_>,
                run: &mut Run,
            ) {
                decode::decode::<K, D>(words, states, run);
            }

            $(#[target_feature(enable = $features)])?
            fn decode_any<D: decode::Decoder>(
                words: &[Lanes<u32>],
                first_bit: usize,
                bits: usize,
                states: States<'_>,
                run: &mut [Lanes<f32>],
            ) {
                decode::decode_any::<D>(words, first_bit, bits, states, run);
            }

            $(#[target_feature(enable = $features)])?
            fn transpose(rows: &[&[u32]; LANES], out: &mut [Lanes<u32>]) {
                simd::transpose($simd, rows, out);
            }

            $(#[target_feature(enable = $features)])?
            fn weigh(run: &mut [Lanes<f32>], scales: &Lanes<f32>, weighing: Weighing) {
                generic::weigh::<FMA>(run, scales, weighing);
            }

            $(#[target_feature(enable = $features)])?
            fn reduce<const M: usize>(
                run: &[Lanes<f32>],
                x: &[f32],
                stride: usize,
                acc: &mut [Lanes<f32>],
            ) {
                generic::reduce::<M, FMA>(run, x, stride, acc);
            }

            $(#[target_feature(enable = $features)])?
            fn scatter<const G: usize>(runs: &[Run], x: &[Lanes<f32>], acc: &mut Run) {
                generic::scatter::<G, FMA>(runs, x, acc);
            }

            $(#[target_feature(enable = $features)])?
            fn fold(acc: &[Lanes<f32>], out: &mut [f32]) {
                generic::fold(acc, out);
            }

            $(#[target_feature(enable = $features)])?
            fn dense_rows(weight: DenseRows<'_>, x: &[f32], m: usize, y: &mut [f32]) {
                dense::dense_rows($simd, weight, x, m, y);
            }

            $(#[target_feature(enable = $features)])?
            fn dot_bytes(row: Quants<'_>, x: &[f32], sums: &[f32]) -> f32 {
                generic::dot_bytes::<FMA>(row, x, sums)
            }

            $(#[target_feature(enable = $features)])?
            fn hadamard(x: &mut [f32], block: usize) {
                generic::hadamard(x, block);
            }

            $(#[target_feature(enable = $features)])?
            fn int_decode<const K: usize, const WIDE: bool>(
                group: GroupWords<'_>,
                sums: &mut Sums,
            ) {
                int_kernels::decode::<_, K, WIDE>($simd, group, sums);
            }

            $(#[target_feature(enable = $features)])?
            fn int_scatter(
                sums: &Sums,
                x: &Quantized<'_>,
                group: usize,
                out: &mut [f32],
                pitch: usize,
            ) {
                int_kernels::scatter($simd, sums, x, group, out, pitch);
            }

            $(#[target_feature(enable = $features)])?
            fn int_reduce(
                sums: &Sums,
                count: usize,
                x: &Quantized<'_>,
                first: usize,
                acc: &mut [Lanes<u32>],
                totals: &mut [Lanes<f32>],
            ) {
                int_kernels::reduce($simd, sums, count, x, first, acc, totals);
            }

            $(#[target_feature(enable = $features)])?
            fn float_scatter(
                sums: &Sums,
                x: &Grouped<'_>,
                group: usize,
                out: &mut [f32],
                pitch: usize,
            ) {
                float_kernels::scatter($simd, sums, x, group, out, pitch);
            }

            $(#[target_feature(enable = $features)])?
            fn float_reduce(
                sums: &Sums,
                count: usize,
                x: &Grouped<'_>,
                first: usize,
                totals: &mut [Lanes<f32>],
            ) {
                float_kernels::reduce($simd, sums, count, x, first, totals);
            }

            macro_rules! every_k {
                ($decoder:ty) => {
                    [
                        decode::<1, $decoder>,
                        decode::<2, $decoder>,
                        decode::<3, $decoder>,
                        decode::<4, $decoder>,
                        decode::<5, $decoder>,
                        decode::<6, $decoder>,
                        decode::<7, $decoder>,
                        decode::<8, $decoder>,
                    ]
                };
            }

            pub(super) static KERNELS: Kernels = Kernels {
                reduce_rows: $rows,
                int_decode: [
                    int_decoders!(false, 1 2 3 4 5 6 7 8),
                    int_decoders!(true, 1 2 3 4 5 6 7 8),
                ],
                int_scatter,
                int_reduce,
                float_scatter,
                float_reduce,
                decode: [
                    every_k!(OneMad<12>),
                    every_k!(OneMad<16>),
                    every_k!(ThreeInst),
                ],
                decode_any: [
                    decode_any::<OneMad<16>>,
                    decode_any::<OneMad<16>>,
                    decode_any::<ThreeInst>,
                    decode_any::<Table>,
                ],
                transpose,
                weigh,
                reduce: [reduce::<1>, reduce::<2>, reduce::<4>, reduce::<8>],
                scatter: [scatter::<1>, scatter::<2>, scatter::<3>, scatter::<4>],
                fold,
                dense_rows,
                dot_bytes,
                hadamard,
            };
        }
    };
}

/// The vectors of the build's baseline.
#[cfg(target_arch = "aarch64")]
const BASELINE: super::neon::Neon = super::neon::Neon;
#[cfg(not(target_arch = "aarch64"))]
const BASELINE: super::simd::Portable = super::simd::Portable;

compile!(
    baseline,
    fma: cfg!(any(target_arch = "aarch64", target_feature = "fma")),
    reduce_rows: 4,
    simd: BASELINE
);
// SAFETY (all): the function that makes the value is compiled for the features that it stands for.
#[cfg(target_arch = "x86_64")]
compile!(
    avx2,
    fma: true,
    reduce_rows: 4,
    simd: unsafe { super::super::avx2::Avx2::new() },
    features: "avx2,fma,f16c"
);
#[cfg(target_arch = "x86_64")]
compile!(
    avx512,
    fma: true,
    reduce_rows: 8,
    simd: unsafe { super::super::avx512::Avx512::<false>::new() },
    features: "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
);
#[cfg(target_arch = "x86_64")]
compile!(
    avx512_vnni,
    fma: true,
    reduce_rows: 8,
    simd: unsafe { super::super::avx512::Avx512::<true>::new() },
    features: "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi2,avx2,fma,f16c"
);
