//! AVX-512: F, BW, DQ, VL; with `NEW` also VNNI and VBMI2.

use super::lanes::{LANES, Lanes};
use super::simd::{Floats, Simd};
use super::sums::{FLOAT_BITS, FLOAT_CENTRE};
use half::{bf16, f16};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(super) struct Avx512<const NEW: bool>(());

impl<const NEW: bool> Avx512<NEW> {
    /// # Safety
    /// The machine has the instruction sets above.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Self(())
    }
}

/// Every other 16-bit lane: the high halves.
const HIGH: __mmask32 = 0xAAAA_AAAA;

/// Four words from `word` on of the rows `row`, `row + 4` and so on.
#[inline(always)]
unsafe fn four_rows(rows: &[&[u32]; LANES], row: usize, word: usize) -> __m512i {
    // SAFETY: as the caller says, there is AVX-512 F; four words are read from slices of four.
    unsafe {
        let quarter = |i: usize| _mm_loadu_si128(rows[row + 4 * i][word..word + 4].as_ptr().cast());
        let v = _mm512_castsi128_si512(quarter(0));
        let v = _mm512_inserti32x4::<1>(v, quarter(1));
        let v = _mm512_inserti32x4::<2>(v, quarter(2));
        _mm512_inserti32x4::<3>(v, quarter(3))
    }
}

/// Sums of four vectors by 128-bit quarter: `[a, b, c, d]` in each.
#[inline(always)]
unsafe fn quad(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> __m512i {
    // SAFETY: as the caller says, there is AVX-512 F.
    unsafe {
        let a = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let c = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c))
    }
}

/// Sums of neighbouring quarters: two of `a`, then two of `b`.
#[inline(always)]
unsafe fn halves(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: as the caller says, there is AVX-512 F.
    unsafe {
        let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
        _mm512_add_epi32(even, _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b))
    }
}

// SAFETY (all blocks here): a value of the type exists only where the instructions do; memory is
// reached through references of the size that is read or written.
impl<const NEW: bool> Simd for Avx512<NEW> {
    type V = __m512i;
    const LANES: usize = 16;

    #[inline(always)]
    fn splat16(self, value: u16) -> __m512i {
        unsafe { _mm512_set1_epi16(value as i16) }
    }

    #[inline(always)]
    fn splat32(self, value: u32) -> __m512i {
        unsafe { _mm512_set1_epi32(value as i32) }
    }

    #[inline(always)]
    fn load(self, from: &Lanes<u32>, _part: usize) -> __m512i {
        unsafe { _mm512_loadu_si512(from.0.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, value: __m512i, to: &mut Lanes<u32>, _part: usize) {
        unsafe { _mm512_storeu_si512(to.0.as_mut_ptr().cast(), value) }
    }

    #[inline(always)]
    fn low_low(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_mask_blend_epi16(HIGH, a, _mm512_slli_epi32::<16>(b)) }
    }

    #[inline(always)]
    fn low_high(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_mask_blend_epi16(HIGH, a, b) }
    }

    #[inline(always)]
    fn high_low(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe {
            if NEW {
                _mm512_shrdi_epi32::<16>(a, b)
            } else {
                let a = _mm512_srli_epi32::<16>(a);
                _mm512_mask_blend_epi16(HIGH, a, _mm512_slli_epi32::<16>(b))
            }
        }
    }

    #[inline(always)]
    fn high_high(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_mask_blend_epi16(HIGH, _mm512_srli_epi32::<16>(a), b) }
    }

    #[inline(always)]
    fn funnel16(self, low: __m512i, high: __m512i, shift: u32) -> __m512i {
        unsafe {
            if NEW {
                _mm512_shrdv_epi16(low, high, _mm512_set1_epi16(shift as i16))
            } else {
                let high = _mm512_sll_epi16(high, _mm_cvtsi32_si128(16 - shift as i32));
                _mm512_or_si512(self.shift_right16(low, shift), high)
            }
        }
    }

    #[inline(always)]
    fn shift_right16(self, a: __m512i, shift: u32) -> __m512i {
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi32_si128(shift as i32)) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn add16(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi16(a, b) }
    }

    #[inline(always)]
    fn add_carry16(self, a: __m512i, b: __m512i, low: __m512i, addend: u16) -> (__m512i, __m512i) {
        unsafe {
            let addend = self.splat16(addend);
            let (sum, high) = (_mm512_add_epi16(low, addend), _mm512_add_epi16(a, b));
            let carries = _mm512_cmplt_epu16_mask(sum, addend);
            (_mm512_mask_add_epi16(high, carries, high, self.splat16(1)), sum)
        }
    }

    #[inline(always)]
    fn mul_low16(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_mullo_epi16(a, b) }
    }

    #[inline(always)]
    fn mul_high16(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_mulhi_epu16(a, b) }
    }

    #[inline(always)]
    fn byte_sums(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe {
            let ones = _mm512_set1_epi8(1);
            _mm512_add_epi16(_mm512_maddubs_epi16(a, ones), _mm512_maddubs_epi16(b, ones))
        }
    }

    #[inline(always)]
    fn dot16(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        unsafe {
            if NEW {
                _mm512_dpwssd_epi32(acc, a, b)
            } else {
                _mm512_add_epi32(acc, _mm512_madd_epi16(a, b))
            }
        }
    }

    #[inline(always)]
    fn add32(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn transpose4(self, rows: &[&[u32]; LANES], word: usize, out: &mut [Lanes<u32>; 4]) {
        unsafe {
            // Rows i, i + 4, i + 8 and i + 12 side by side, then four 4 x 4 transposes at once.
            let a = four_rows(rows, 0, word);
            let b = four_rows(rows, 1, word);
            let c = four_rows(rows, 2, word);
            let d = four_rows(rows, 3, word);
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            self.store(_mm512_unpacklo_epi64(ab, cd), &mut out[0], 0);
            self.store(_mm512_unpackhi_epi64(ab, cd), &mut out[1], 0);
            let (ab, cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            self.store(_mm512_unpacklo_epi64(ab, cd), &mut out[2], 0);
            self.store(_mm512_unpackhi_epi64(ab, cd), &mut out[3], 0);
        }
    }

    #[inline(always)]
    fn fold(self, v: &[__m512i; 16], out: &mut [i32; 16]) {
        unsafe {
            let (a, b) = (quad(v[0], v[1], v[2], v[3]), quad(v[4], v[5], v[6], v[7]));
            let (c, d) = (quad(v[8], v[9], v[10], v[11]), quad(v[12], v[13], v[14], v[15]));
            let sums = halves(halves(a, b), halves(c, d));
            _mm512_storeu_si512(out.as_mut_ptr().cast(), sums);
        }
    }
}

// SAFETY (all blocks here): as above.
impl<const NEW: bool> Floats for Avx512<NEW> {
    type F = __m512;

    #[inline(always)]
    fn low_floats(self, sums: __m512i) -> __m512 {
        unsafe {
            let low = _mm512_and_si512(sums, self.splat32(0xFFFF));
            let bits = _mm512_or_si512(low, self.splat32(FLOAT_BITS));
            _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(FLOAT_CENTRE))
        }
    }

    #[inline(always)]
    fn high_floats(self, sums: __m512i) -> __m512 {
        unsafe {
            let bits = _mm512_or_si512(_mm512_srli_epi32::<16>(sums), self.splat32(FLOAT_BITS));
            _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(FLOAT_CENTRE))
        }
    }

    #[inline(always)]
    fn splat_f32(self, value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn store_f32(self, value: __m512, to: &mut [f32]) {
        unsafe { _mm512_storeu_ps(to[..16].as_mut_ptr(), value) }
    }

    #[inline(always)]
    fn zero(self) -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    fn load_f32(self, from: &[f32]) -> __m512 {
        unsafe { _mm512_loadu_ps(from[..16].as_ptr()) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16]) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from[..16].as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from[..16].as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn multiply_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }
}
