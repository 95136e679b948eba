//! NEON, which every aarch64 has.
//!
//! Halves are multiplied in two steps (low and high lanes), so a vector costs more instructions than
//! elsewhere; the dot-product extension adds 8-bit products only and has nothing to offer to them.

use super::lanes::{LANES, Lanes};
use super::simd::{Floats, Portable, Simd};
use super::sums::{FLOAT_BITS, FLOAT_CENTRE};
use half::{bf16, f16};
use std::arch::aarch64::*;

#[derive(Clone, Copy)]
pub(super) struct Neon;

// SAFETY (all blocks here): NEON is part of the target; memory is reached through references of at
// least the size that is read or written.
impl Simd for Neon {
    type V = uint16x8_t;
    const LANES: usize = 4;

    #[inline(always)]
    fn splat16(self, value: u16) -> uint16x8_t {
        unsafe { vdupq_n_u16(value) }
    }

    #[inline(always)]
    fn splat32(self, value: u32) -> uint16x8_t {
        unsafe { vreinterpretq_u16_u32(vdupq_n_u32(value)) }
    }

    #[inline(always)]
    fn load(self, from: &Lanes<u32>, part: usize) -> uint16x8_t {
        unsafe { vreinterpretq_u16_u32(vld1q_u32(from.0[4 * part..4 * part + 4].as_ptr())) }
    }

    #[inline(always)]
    fn store(self, value: uint16x8_t, to: &mut Lanes<u32>, part: usize) {
        let to = &mut to.0[4 * part..4 * part + 4];
        unsafe { vst1q_u32(to.as_mut_ptr(), vreinterpretq_u32_u16(value)) }
    }

    #[inline(always)]
    fn low_low(self, a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
        unsafe { vtrn1q_u16(a, b) }
    }

    #[inline(always)]
    fn low_high(self, a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
        unsafe { vbslq_u16(self.splat32(0xFFFF), a, b) }
    }

    #[inline(always)]
    fn high_low(self, a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
        unsafe { self.low_high(vrev32q_u16(a), vrev32q_u16(b)) }
    }

    #[inline(always)]
    fn high_high(self, a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
        unsafe { vtrn2q_u16(a, b) }
    }

    #[inline(always)]
    fn funnel16(self, low: uint16x8_t, high: uint16x8_t, shift: u32) -> uint16x8_t {
        unsafe {
            let high = vshlq_u16(high, vdupq_n_s16(16 - shift as i16));
            vorrq_u16(self.shift_right16(low, shift), high)
        }
    }

    #[inline(always)]
    fn shift_right16(self, a: uint16x8_t, shift: u32) -> uint16x8_t {
        unsafe { vshlq_u16(a, vdupq_n_s16(-(shift as i16))) }
    }

    #[inline(always)]
    fn and(self, a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
        unsafe { vandq_u16(a, b) }
    }

    #[inline(always)]
    fn add16(self, a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
        unsafe { vaddq_u16(a, b) }
    }

    #[inline(always)]
    fn add_carry16(
        self,
        a: uint16x8_t,
        b: uint16x8_t,
        low: uint16x8_t,
        addend: u16,
    ) -> (uint16x8_t, uint16x8_t) {
        unsafe {
            let addend = vdupq_n_u16(addend);
            let sum = vaddq_u16(low, addend);
            // A comparison that holds is -1.
            (vsubq_u16(vaddq_u16(a, b), vcltq_u16(sum, addend)), sum)
        }
    }

    #[inline(always)]
    fn mul_low16(self, a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
        unsafe { vmulq_u16(a, b) }
    }

    #[inline(always)]
    fn mul_high16(self, a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
        unsafe {
            let low = vreinterpretq_u16_u32(vmull_u16(vget_low_u16(a), vget_low_u16(b)));
            vuzp2q_u16(low, vreinterpretq_u16_u32(vmull_high_u16(a, b)))
        }
    }

    #[inline(always)]
    fn byte_sums(self, a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
        unsafe { vpadalq_u8(vpaddlq_u8(vreinterpretq_u8_u16(a)), vreinterpretq_u8_u16(b)) }
    }

    #[inline(always)]
    fn dot16(self, acc: uint16x8_t, a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
        unsafe {
            let (a, b) = (vreinterpretq_s16_u16(a), vreinterpretq_s16_u16(b));
            let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
            let sums = vpaddq_s32(low, vmull_high_s16(a, b));
            vreinterpretq_u16_s32(vaddq_s32(vreinterpretq_s32_u16(acc), sums))
        }
    }

    #[inline(always)]
    fn add32(self, a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
        unsafe {
            let sum = vaddq_u32(vreinterpretq_u32_u16(a), vreinterpretq_u32_u16(b));
            vreinterpretq_u16_u32(sum)
        }
    }

    #[inline(always)]
    fn transpose4(self, rows: &[&[u32]; LANES], word: usize, out: &mut [Lanes<u32>; 4]) {
        unsafe {
            for part in 0..4 {
                let a = vld1q_u32(rows[4 * part][word..word + 4].as_ptr());
                let b = vld1q_u32(rows[4 * part + 1][word..word + 4].as_ptr());
                let c = vld1q_u32(rows[4 * part + 2][word..word + 4].as_ptr());
                let d = vld1q_u32(rows[4 * part + 3][word..word + 4].as_ptr());
                let wide = |v| vreinterpretq_u64_u32(v);
                let (ab, cd) = (wide(vzip1q_u32(a, b)), wide(vzip1q_u32(c, d)));
                self.store(vreinterpretq_u16_u64(vzip1q_u64(ab, cd)), &mut out[0], part);
                self.store(vreinterpretq_u16_u64(vzip2q_u64(ab, cd)), &mut out[1], part);
                let (ab, cd) = (wide(vzip2q_u32(a, b)), wide(vzip2q_u32(c, d)));
                self.store(vreinterpretq_u16_u64(vzip1q_u64(ab, cd)), &mut out[2], part);
                self.store(vreinterpretq_u16_u64(vzip2q_u64(ab, cd)), &mut out[3], part);
            }
        }
    }

    #[inline(always)]
    fn fold(self, vectors: &[uint16x8_t; 16], out: &mut [i32; 16]) {
        unsafe {
            for (v, out) in vectors.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0) {
                let pair = |a, b| vpaddq_s32(vreinterpretq_s32_u16(a), vreinterpretq_s32_u16(b));
                vst1q_s32(out.as_mut_ptr(), vpaddq_s32(pair(v[0], v[1]), pair(v[2], v[3])));
            }
        }
    }
}

// SAFETY (all blocks here): as above.
impl Floats for Neon {
    type F = float32x4_t;

    #[inline(always)]
    fn low_floats(self, sums: uint16x8_t) -> float32x4_t {
        unsafe {
            let low = vandq_u32(vreinterpretq_u32_u16(sums), vdupq_n_u32(0xFFFF));
            let bits = vorrq_u32(low, vdupq_n_u32(FLOAT_BITS));
            vsubq_f32(vreinterpretq_f32_u32(bits), vdupq_n_f32(FLOAT_CENTRE))
        }
    }

    #[inline(always)]
    fn high_floats(self, sums: uint16x8_t) -> float32x4_t {
        unsafe {
            let high = vshrq_n_u32::<16>(vreinterpretq_u32_u16(sums));
            let bits = vorrq_u32(high, vdupq_n_u32(FLOAT_BITS));
            vsubq_f32(vreinterpretq_f32_u32(bits), vdupq_n_f32(FLOAT_CENTRE))
        }
    }

    #[inline(always)]
    fn splat_f32(self, value: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(value) }
    }

    #[inline(always)]
    fn store_f32(self, value: float32x4_t, to: &mut [f32]) {
        unsafe { vst1q_f32(to[..4].as_mut_ptr(), value) }
    }

    #[inline(always)]
    fn zero(self) -> float32x4_t {
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    fn load_f32(self, from: &[f32]) -> float32x4_t {
        unsafe { vld1q_f32(from[..4].as_ptr()) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16]) -> float32x4_t {
        self.load_f32(&Portable.load_f16(from))
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> float32x4_t {
        self.load_f32(&Portable.load_bf16(from))
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    fn multiply_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    fn sum(self, a: float32x4_t) -> f32 {
        unsafe { vaddvq_f32(a) }
    }
}
