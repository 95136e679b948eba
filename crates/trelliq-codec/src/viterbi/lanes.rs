//! Vectors of metrics, one implementation for each instruction set. They are written out, because the compiler
//! vectorises the loops over them by fits and starts: not at all for one number of blocks, whole for the next.

use super::metric;

/// Vectors of WIDTH floats of one instruction set. A value of such a type exists only where the instructions do.
pub(super) trait Lanes: Copy {
    type V: Copy;
    const WIDTH: usize;

    fn splat(self, value: f32) -> Self::V;

    /// The first WIDTH floats of `from`.
    fn load(self, from: &[f32]) -> Self::V;

    /// `to[..WIDTH]` becomes `value`.
    fn store(self, value: Self::V, to: &mut [f32]);

    /// Lane i is `from[i >> BITS]`.
    fn spread<const BITS: u32>(self, from: &[f32]) -> Self::V;

    /// The greater of `kept` and the metric of a state, `kept` where they are equal: see [`super::metric`].
    fn step(self, value: Self::V, x2: Self::V, before: Self::V, kept: Self::V) -> Self::V;
}

#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Lanes for Portable {
    type V = [f32; 8];
    const WIDTH: usize = 8;

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; 8] {
        [value; 8]
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> [f32; 8] {
        from[..8].try_into().expect("8 floats")
    }

    #[inline(always)]
    fn store(self, value: [f32; 8], to: &mut [f32]) {
        to[..8].copy_from_slice(&value);
    }

    #[inline(always)]
    fn spread<const BITS: u32>(self, from: &[f32]) -> [f32; 8] {
        std::array::from_fn(|lane| from[lane >> BITS])
    }

    #[inline(always)]
    fn step(self, value: [f32; 8], x2: [f32; 8], before: [f32; 8], kept: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| {
            let candidate = metric(value[lane], x2[lane], before[lane]);
            if candidate > kept[lane] { candidate } else { kept[lane] }
        })
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(());

    impl Avx2 {
        /// # Safety
        /// The machine has AVX2 and FMA.
        #[inline(always)]
        pub(in super::super) unsafe fn new() -> Self {
            Self(())
        }
    }

    // SAFETY (all blocks here): a value of the type exists only where the instructions do; memory is
    // reached through slices of at least the size that is read or written.
    impl Lanes for Avx2 {
        type V = __m256;
        const WIDTH: usize = 8;

        #[inline(always)]
        fn splat(self, value: f32) -> __m256 {
            unsafe { _mm256_set1_ps(value) }
        }

        #[inline(always)]
        fn load(self, from: &[f32]) -> __m256 {
            unsafe { _mm256_loadu_ps(from[..8].as_ptr()) }
        }

        #[inline(always)]
        fn store(self, value: __m256, to: &mut [f32]) {
            unsafe { _mm256_storeu_ps(to[..8].as_mut_ptr(), value) }
        }

        #[inline(always)]
        fn spread<const BITS: u32>(self, from: &[f32]) -> __m256 {
            unsafe {
                match BITS {
                    1 => {
                        let four = _mm_loadu_ps(from[..4].as_ptr());
                        let twice = _mm256_set_m128(four, four);
                        _mm256_permutevar_ps(twice, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3))
                    }
                    2 => {
                        let two = _mm_castpd_ps(_mm_load_sd(from[..2].as_ptr().cast()));
                        let spread = _mm256_castpd_ps(_mm256_broadcastsd_pd(_mm_castps_pd(two)));
                        _mm256_permutevar_ps(spread, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1))
                    }
                    _ => _mm256_set1_ps(from[0]),
                }
            }
        }

        #[inline(always)]
        fn step(self, value: __m256, x2: __m256, before: __m256, kept: __m256) -> __m256 {
            unsafe { _mm256_max_ps(_mm256_fmadd_ps(value, _mm256_sub_ps(x2, value), before), kept) }
        }
    }

    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512(());

    impl Avx512 {
        /// # Safety
        /// The machine has AVX-512F.
        #[inline(always)]
        pub(in super::super) unsafe fn new() -> Self {
            Self(())
        }
    }

    impl Lanes for Avx512 {
        type V = __m512;
        const WIDTH: usize = 16;

        #[inline(always)]
        fn splat(self, value: f32) -> __m512 {
            unsafe { _mm512_set1_ps(value) }
        }

        #[inline(always)]
        fn load(self, from: &[f32]) -> __m512 {
            unsafe { _mm512_loadu_ps(from[..16].as_ptr()) }
        }

        #[inline(always)]
        fn store(self, value: __m512, to: &mut [f32]) {
            unsafe { _mm512_storeu_ps(to[..16].as_mut_ptr(), value) }
        }

        #[inline(always)]
        fn spread<const BITS: u32>(self, from: &[f32]) -> __m512 {
            unsafe {
                let few = match BITS {
                    1 => _mm512_castps256_ps512(_mm256_loadu_ps(from[..8].as_ptr())),
                    2 => _mm512_castps128_ps512(_mm_loadu_ps(from[..4].as_ptr())),
                    3 => _mm512_castps128_ps512(_mm_castpd_ps(_mm_load_sd(
                        from[..2].as_ptr().cast(),
                    ))),
                    _ => return _mm512_set1_ps(from[0]),
                };
                let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                _mm512_permutexvar_ps(_mm512_srli_epi32::<BITS>(lanes), few)
            }
        }

        #[inline(always)]
        fn step(self, value: __m512, x2: __m512, before: __m512, kept: __m512) -> __m512 {
            unsafe { _mm512_max_ps(_mm512_fmadd_ps(value, _mm512_sub_ps(x2, value), before), kept) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) mod neon {
    use super::Lanes;
    use std::arch::aarch64::*;

    #[derive(Clone, Copy)]
    pub(in super::super) struct Neon;

    // SAFETY (all blocks here): every aarch64 target of Rust has NEON; memory is reached through slices of at
    // least the size that is read or written.
    impl Lanes for Neon {
        type V = float32x4_t;
        const WIDTH: usize = 4;

        #[inline(always)]
        fn splat(self, value: f32) -> float32x4_t {
            unsafe { vdupq_n_f32(value) }
        }

        #[inline(always)]
        fn load(self, from: &[f32]) -> float32x4_t {
            unsafe { vld1q_f32(from[..4].as_ptr()) }
        }

        #[inline(always)]
        fn store(self, value: float32x4_t, to: &mut [f32]) {
            unsafe { vst1q_f32(to[..4].as_mut_ptr(), value) }
        }

        #[inline(always)]
        fn spread<const BITS: u32>(self, from: &[f32]) -> float32x4_t {
            if BITS == 1 {
                let two = unsafe { vld1_f32(from[..2].as_ptr()) };
                return unsafe { vcombine_f32(vdup_lane_f32::<0>(two), vdup_lane_f32::<1>(two)) };
            }
            self.splat(from[0])
        }

        #[inline(always)]
        fn step(
            self,
            value: float32x4_t,
            x2: float32x4_t,
            before: float32x4_t,
            kept: float32x4_t,
        ) -> float32x4_t {
            unsafe { vmaxq_f32(vfmaq_f32(before, value, vsubq_f32(x2, value)), kept) }
        }
    }
}
