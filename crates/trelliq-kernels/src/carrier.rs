//! The fallback for machines where packed decoding loses: the layer's weight, un-rotated and
//! quantized again at load to 8-bit affine groups of 64 inputs.

use crate::linear::check_len;
use crate::options::sized;
use crate::{Activation, KernelError, KernelOptions, Numerics, Scratch, TrellisLinear};

/// Inputs that share one scale and offset.
const GROUP: usize = 64;

/// A dense layer of 8-bit weights: `w = offset + scale * q`, q in 0..=255, per group of 64 inputs.
#[derive(Clone, Debug)]
pub struct Carrier {
    in_features: usize,
    out_features: usize,
    /// `[out, in]`.
    quants: Vec<u8>,
    /// `[out, ceil(in / 64)]` of (scale, offset).
    groups: Vec<(f32, f32)>,
    bias: Option<Vec<f32>>,
}

impl Carrier {
    /// Quantizes the un-rotated weight of `layer`. Besides the result it holds one block of the
    /// output rotation (one row where there is none) in f32 at a time.
    pub fn from_linear(layer: &TrellisLinear, numerics: Numerics) -> Result<Self, KernelError> {
        let (inputs, outputs) = (layer.in_features(), layer.out_features());
        let mut dense = vec![0.0; inputs * outputs];
        layer.expand_weight(numerics, &mut dense)?;
        let mut this = Self {
            in_features: inputs,
            out_features: outputs,
            quants: Vec::with_capacity(inputs * outputs),
            groups: Vec::with_capacity(outputs * inputs.div_ceil(GROUP)),
            bias: layer.bias().map(<[f32]>::to_vec),
        };
        for row in dense.chunks_exact(inputs) {
            this.push_row(row);
        }
        Ok(this)
    }

    pub fn in_features(&self) -> usize {
        self.in_features
    }

    pub fn out_features(&self) -> usize {
        self.out_features
    }

    fn push_row(&mut self, row: &[f32]) {
        for group in row.chunks(GROUP) {
            let low = group.iter().copied().fold(f32::INFINITY, f32::min);
            let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let scale = (high - low) / 255.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            self.groups.push((scale, low));
            self.quants
                .extend(group.iter().map(|w| ((w - low) * inverse).round() as u8));
        }
    }

    /// As [`TrellisLinear::forward`].
    pub fn forward<A: Activation>(
        &self,
        x: &[A],
        m: usize,
        y: &mut [A],
        _options: &KernelOptions,
        scratch: &mut Scratch,
    ) -> Result<(), KernelError> {
        check_len("x", x.len(), m * self.in_features)?;
        check_len("y", y.len(), m * self.out_features)?;
        let input = sized(&mut scratch.x, x.len());
        A::widen(x, input);
        let groups = self.in_features.div_ceil(GROUP);
        for (x, y) in input
            .chunks_exact(self.in_features)
            .zip(y.chunks_exact_mut(self.out_features))
        {
            for (row, y) in y.iter_mut().enumerate() {
                let quants = &self.quants[row * self.in_features..(row + 1) * self.in_features];
                let mut sum = self.bias.as_ref().map_or(0.0, |bias| bias[row]);
                for ((quants, x), (scale, offset)) in quants
                    .chunks(GROUP)
                    .zip(x.chunks(GROUP))
                    .zip(&self.groups[row * groups..(row + 1) * groups])
                {
                    let dot: f32 = quants.iter().zip(x).map(|(&q, x)| f32::from(q) * x).sum();
                    sum += scale * dot + offset * x.iter().sum::<f32>();
                }
                *y = A::from_f32(sum);
            }
        }
        Ok(())
    }
}
