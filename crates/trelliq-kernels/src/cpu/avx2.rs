//! AVX2, FMA and F16C.

use super::lanes::{LANES, Lanes};
use super::simd::{Floats, Simd};
use super::sums::{FLOAT_BITS, FLOAT_CENTRE};
use half::{bf16, f16};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine has the instruction sets above.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Self(())
    }
}

/// Every other 16-bit lane: the high halves.
const HIGH: i32 = 0xAA;

/// Four words from `word` on of the rows `row` and `row + 4`.
#[inline(always)]
unsafe fn two_rows(rows: &[&[u32]; LANES], row: usize, word: usize) -> __m256i {
    // SAFETY: as the caller says, there is AVX2; four words are read from slices of four.
    unsafe {
        let low = _mm_loadu_si128(rows[row][word..word + 4].as_ptr().cast());
        let high = _mm_loadu_si128(rows[row + 4][word..word + 4].as_ptr().cast());
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
    }
}

/// Sums of four vectors by 128-bit half: `[a, b, c, d]` in each.
#[inline(always)]
unsafe fn quad(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    // SAFETY: as the caller says, there is AVX2.
    unsafe {
        let a = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let c = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        _mm256_add_epi32(_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c))
    }
}

/// As [`quad`].
#[inline(always)]
unsafe fn quad_f32(a: __m256, b: __m256, c: __m256, d: __m256) -> __m256 {
    // SAFETY: as the caller says, there is AVX2.
    unsafe {
        let a = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let c = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        let low = _mm256_shuffle_ps::<0x44>(a, c);
        _mm256_add_ps(low, _mm256_shuffle_ps::<0xEE>(a, c))
    }
}

// SAFETY (all blocks here): a value of the type exists only where the instructions do; memory is
// reached through references of at least the size that is read or written.
impl Simd for Avx2 {
    type V = __m256i;
    const LANES: usize = 8;

    #[inline(always)]
    fn splat16(self, value: u16) -> __m256i {
        unsafe { _mm256_set1_epi16(value as i16) }
    }

    #[inline(always)]
    fn splat32(self, value: u32) -> __m256i {
        unsafe { _mm256_set1_epi32(value as i32) }
    }

    #[inline(always)]
    fn load(self, from: &Lanes<u32>, part: usize) -> __m256i {
        unsafe { _mm256_loadu_si256(from.0[8 * part..8 * part + 8].as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, value: __m256i, to: &mut Lanes<u32>, part: usize) {
        unsafe { _mm256_storeu_si256(to.0[8 * part..8 * part + 8].as_mut_ptr().cast(), value) }
    }

    #[inline(always)]
    fn low_low(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_blend_epi16::<HIGH>(a, _mm256_slli_epi32::<16>(b)) }
    }

    #[inline(always)]
    fn low_high(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_blend_epi16::<HIGH>(a, b) }
    }

    #[inline(always)]
    fn high_low(self, a: __m256i, b: __m256i) -> __m256i {
        self.low_low(unsafe { _mm256_srli_epi32::<16>(a) }, b)
    }

    #[inline(always)]
    fn high_high(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_blend_epi16::<HIGH>(_mm256_srli_epi32::<16>(a), b) }
    }

    #[inline(always)]
    fn funnel16(self, low: __m256i, high: __m256i, shift: u32) -> __m256i {
        unsafe {
            let high = _mm256_sll_epi16(high, _mm_cvtsi32_si128(16 - shift as i32));
            _mm256_or_si256(self.shift_right16(low, shift), high)
        }
    }

    #[inline(always)]
    fn shift_right16(self, a: __m256i, shift: u32) -> __m256i {
        unsafe { _mm256_srl_epi16(a, _mm_cvtsi32_si128(shift as i32)) }
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    fn add16(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi16(a, b) }
    }

    #[inline(always)]
    fn add_carry16(self, a: __m256i, b: __m256i, low: __m256i, addend: u16) -> (__m256i, __m256i) {
        unsafe {
            // A sum that saturation does not change did not carry: compares to -1.
            let addend = self.splat16(addend);
            let sum = _mm256_add_epi16(low, addend);
            let kept = _mm256_cmpeq_epi16(sum, _mm256_adds_epu16(low, addend));
            let high = _mm256_add_epi16(a, _mm256_add_epi16(b, self.splat16(1)));
            (_mm256_add_epi16(high, kept), sum)
        }
    }

    #[inline(always)]
    fn mul_low16(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_mullo_epi16(a, b) }
    }

    #[inline(always)]
    fn mul_high16(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_mulhi_epu16(a, b) }
    }

    #[inline(always)]
    fn byte_sums(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe {
            let ones = _mm256_set1_epi8(1);
            _mm256_add_epi16(_mm256_maddubs_epi16(a, ones), _mm256_maddubs_epi16(b, ones))
        }
    }

    #[inline(always)]
    fn dot16(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)) }
    }

    #[inline(always)]
    fn add32(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    fn transpose4(self, rows: &[&[u32]; LANES], word: usize, out: &mut [Lanes<u32>; 4]) {
        unsafe {
            for part in 0..2 {
                // Rows i and i + 4 side by side, then two 4 x 4 transposes at once.
                let a = two_rows(rows, 8 * part, word);
                let b = two_rows(rows, 8 * part + 1, word);
                let c = two_rows(rows, 8 * part + 2, word);
                let d = two_rows(rows, 8 * part + 3, word);
                let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
                self.store(_mm256_unpacklo_epi64(ab, cd), &mut out[0], part);
                self.store(_mm256_unpackhi_epi64(ab, cd), &mut out[1], part);
                let (ab, cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
                self.store(_mm256_unpacklo_epi64(ab, cd), &mut out[2], part);
                self.store(_mm256_unpackhi_epi64(ab, cd), &mut out[3], part);
            }
        }
    }

    #[inline(always)]
    fn fold(self, v: &[__m256i; 16], out: &mut [i32; 16]) {
        unsafe {
            for (v, out) in v.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<8>().0) {
                let (a, b) = (quad(v[0], v[1], v[2], v[3]), quad(v[4], v[5], v[6], v[7]));
                let low = _mm256_permute2x128_si256::<0x20>(a, b);
                let sums = _mm256_add_epi32(low, _mm256_permute2x128_si256::<0x31>(a, b));
                _mm256_storeu_si256(out.as_mut_ptr().cast(), sums);
            }
        }
    }
}

// SAFETY (all blocks here): as above.
impl Floats for Avx2 {
    type F = __m256;

    #[inline(always)]
    fn low_floats(self, sums: __m256i) -> __m256 {
        unsafe {
            let bits = _mm256_blend_epi16::<HIGH>(sums, self.splat32(FLOAT_BITS));
            _mm256_sub_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(FLOAT_CENTRE))
        }
    }

    #[inline(always)]
    fn high_floats(self, sums: __m256i) -> __m256 {
        unsafe {
            let bits = _mm256_or_si256(_mm256_srli_epi32::<16>(sums), self.splat32(FLOAT_BITS));
            _mm256_sub_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(FLOAT_CENTRE))
        }
    }

    #[inline(always)]
    fn splat_f32(self, value: f32) -> __m256 {
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn store_f32(self, value: __m256, to: &mut [f32]) {
        unsafe { _mm256_storeu_ps(to[..8].as_mut_ptr(), value) }
    }

    #[inline(always)]
    fn fold_floats(self, v: &[__m256; 16], out: &mut [f32; 16]) {
        unsafe {
            for (v, out) in v.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<8>().0) {
                let (a, b) = (quad_f32(v[0], v[1], v[2], v[3]), quad_f32(v[4], v[5], v[6], v[7]));
                let low = _mm256_permute2f128_ps::<0x20>(a, b);
                let sums = _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(a, b));
                _mm256_storeu_ps(out.as_mut_ptr(), sums);
            }
        }
    }

    #[inline(always)]
    fn zero(self) -> __m256 {
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    fn load_f32(self, from: &[f32]) -> __m256 {
        unsafe { _mm256_loadu_ps(from[..8].as_ptr()) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16]) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from[..8].as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> __m256 {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from[..8].as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn multiply_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        unsafe {
            let half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
}
