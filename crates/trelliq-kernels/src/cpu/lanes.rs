//! Sixteen stored rows side by side: the vector that every kernel works on. A lane is a row, so all
//! lanes need the same bit shift at a position, and it is a compile-time constant.

/// Stored rows that are decoded together.
pub(super) const LANES: usize = 16;

/// Positions of a row whose packed bits start and end on a word.
pub(super) const RUN: usize = 32;

/// One element of each of sixteen stored rows, on a cache line.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub(super) struct Lanes<T>(pub [T; LANES]);

impl<T: Copy + Default> Default for Lanes<T> {
    fn default() -> Self {
        Self([T::default(); LANES])
    }
}

/// Decoded weights of up to 32 positions of sixteen rows, in the order of positions.
pub(super) type Run = [Lanes<f32>; RUN];

/// A run of zeros.
pub(super) const ZERO_RUN: Run = [Lanes::ZERO; RUN];

impl Lanes<f32> {
    pub const ZERO: Self = Self([0.0; LANES]);

    #[inline(always)]
    pub fn map2(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    pub fn add(self, other: Self) -> Self {
        self.map2(other, |a, b| a + b)
    }

    /// The sum of the lanes, halves first.
    #[inline(always)]
    pub fn sum(self) -> f32 {
        let v = self.0;
        let v: [f32; 8] = std::array::from_fn(|i| v[i] + v[i + 8]);
        let v: [f32; 4] = std::array::from_fn(|i| v[i] + v[i + 4]);
        (v[0] + v[2]) + (v[1] + v[3])
    }
}
