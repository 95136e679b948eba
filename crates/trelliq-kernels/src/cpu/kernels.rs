//! The dispatch table: every kernel, compiled for every instruction set, chosen once a call.

use super::Isa;
use super::decode::{self, DecodeAnyFn, DecodeFn, OneMad, States, Table, ThreeInst};
use super::generic::{self, Quants, Weighing};
use super::lanes::{LANES, Lanes, Run};
use trelliq_codec::{Code, Trellis};

/// Rows of x that one pass of [`Kernels::reduce`] can take: the index is log2.
type ReduceFn = unsafe fn(&[Lanes<f32>], &[f32], usize, &mut [Lanes<f32>]);
type ScatterFn = unsafe fn(&[Run], &[Lanes<f32>], &mut Run);

/// Most groups of sixteen rows that one pass of [`Kernels::scatter`] takes.
pub(super) const SCATTER_GROUPS: usize = 4;

/// The kernels of one instruction set. Bodies and meanings are in `generic.rs` and `decode.rs`.
///
/// Every pointer may be called on a machine where [`Isa::available`] holds for `isa`, which
/// [`kernels`] makes sure of before it hands the table out.
pub(super) struct Kernels {
    /// Rows of x that fit the registers beside the weights.
    pub reduce_rows: usize,
    /// By variant of the code, then K - 1.
    decode: [[DecodeFn; 8]; 4],
    decode_any: [DecodeAnyFn; 4],
    transpose: unsafe fn(&[&[u32]; LANES], &mut [Lanes<u32>]),
    weigh: unsafe fn(&mut [Lanes<f32>], &Lanes<f32>, Weighing),
    reduce: [ReduceFn; 4],
    scatter: [ScatterFn; SCATTER_GROUPS],
    fold: unsafe fn(&[Lanes<f32>], &mut [f32]),
    dot_bytes: unsafe fn(Quants<'_>, &[f32], &[f32]) -> f32,
    hadamard: unsafe fn(&mut [f32], usize),
}

/// The decoders of one code and K.
#[derive(Clone, Copy)]
pub(super) struct Decoders {
    run: DecodeFn,
    any: DecodeAnyFn,
}

impl Decoders {
    /// One run of 32 positions; `words` are its K words and the next.
    pub fn run(&self, words: &[Lanes<u32>], states: States<'_>, run: &mut Run) {
        // SAFETY: the table this comes from was handed out for an available instruction set.
        unsafe { (self.run)(words, states, run) }
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

// SAFETY (all methods): the table was handed out for an available instruction set.
impl Kernels {
    pub fn decoders(&self, trellis: &Trellis) -> Decoders {
        let variant = match (trellis.code(), trellis.state_bits()) {
            (Code::OneMad, ..=12) => 0,
            (Code::OneMad, _) => 1,
            (Code::ThreeInst, _) => 2,
            _ => 3,
        };
        let run = self.decode[variant][trellis.bits() as usize - 1];
        Decoders { run, any: self.decode_any[variant] }
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

    pub fn dot_bytes(&self, row: Quants<'_>, x: &[f32], sums: &[f32]) -> f32 {
        // SAFETY: see the impl.
        unsafe { (self.dot_bytes)(row, x, sums) }
    }

    pub fn hadamard(&self, x: &mut [f32], block: usize) {
        // SAFETY: see the impl.
        unsafe { (self.hadamard)(x, block) }
    }
}

/// The table of `isa`, or of the best available one when that is not asked for or not there.
pub(super) fn kernels(isa: Option<Isa>) -> &'static Kernels {
    match isa.filter(|isa| isa.available()).unwrap_or_else(Isa::best) {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::KERNELS,
        _ => &baseline::KERNELS,
    }
}

macro_rules! compile {
    ($module:ident, fma: $fma:expr, reduce_rows: $rows:literal $(, features: $features:literal)?) => {
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
                generic::transpose(rows, out);
            }

            $(#[target_feature(enable = $features)])?
            fn weigh(run: &mut [Lanes<f32>], scales: &Lanes<f32>, weighing: Weighing) {
                generic::weigh::<FMA>(run, scales, weighing);
            }

            $(#[target_feature(enable = $features)])?
            fn reduce_one(run: &[Lanes<f32>], x: &[f32], stride: usize, acc: &mut [Lanes<f32>]) {
                generic::reduce_one::<FMA>(run, x, stride, acc);
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
            fn dot_bytes(row: Quants<'_>, x: &[f32], sums: &[f32]) -> f32 {
                generic::dot_bytes::<FMA>(row, x, sums)
            }

            $(#[target_feature(enable = $features)])?
            fn hadamard(x: &mut [f32], block: usize) {
                generic::hadamard(x, block);
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
                decode: [
                    every_k!(OneMad<12>),
                    every_k!(OneMad<16>),
                    every_k!(ThreeInst),
                    every_k!(Table),
                ],
                decode_any: [
                    decode_any::<OneMad<16>>,
                    decode_any::<OneMad<16>>,
                    decode_any::<ThreeInst>,
                    decode_any::<Table>,
                ],
                transpose,
                weigh,
                reduce: [reduce_one, reduce::<2>, reduce::<4>, reduce::<8>],
                scatter: [scatter::<1>, scatter::<2>, scatter::<3>, scatter::<4>],
                fold,
                dot_bytes,
                hadamard,
            };
        }
    };
}

compile!(
    baseline,
    fma: cfg!(any(target_arch = "aarch64", target_feature = "fma")),
    reduce_rows: 4
);
#[cfg(target_arch = "x86_64")]
compile!(avx2, fma: true, reduce_rows: 4, features: "avx2,fma");
#[cfg(target_arch = "x86_64")]
compile!(
    avx512,
    fma: true,
    reduce_rows: 8,
    features: "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
);
