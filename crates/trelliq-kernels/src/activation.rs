//! Number types of activations. Sums are always taken in f32.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A type that activations and expanded weights come in: f32, f16 or bf16.
pub trait Activation: Copy + Default + Send + Sync + std::fmt::Debug + 'static {
    /// Rounds to nearest, ties to even.
    fn from_f32(value: f32) -> Self;

    fn to_f32(self) -> f32;

    /// Converts a slice to f32; both have the same length.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Rounds a slice of f32; both have the same length.
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Activation for f32 {
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

macro_rules! half_activation {
    ($($half:ty),*) => {$(
        impl Activation for $half {
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                <$half>::from_f32(value)
            }

            #[inline(always)]
            fn to_f32(self) -> f32 {
                <$half>::to_f32(self)
            }

            fn widen(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }

            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }
        }
    )*};
}

half_activation!(f16, bf16);
