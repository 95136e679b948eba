//! A linear layer, however its weight is held.

use super::dense::DenseWeight;
use super::ops::{add_rows, gelu_tanh, silu};
use crate::config::Activation;
use trelliq_kernels::{
    Carrier, Gate, KernelError, KernelOptions, Numerics, Scratch, TrellisLinear, forward_shared,
    gate_up,
};

/// `y = x W^T + bias`.
#[derive(Debug)]
pub(crate) enum Linear {
    Dense { weight: DenseWeight, bias: Option<Vec<f32>> },
    Packed(TrellisLinear),
    Carrier(Carrier),
}

/// What a call needs besides its operands.
pub(crate) struct Context<'a> {
    pub options: &'a KernelOptions,
    pub scratch: Scratch,
}

impl Linear {
    pub fn out_features(&self) -> usize {
        match self {
            Linear::Dense { weight, .. } => weight.rows(),
            Linear::Packed(layer) => layer.out_features(),
            Linear::Carrier(layer) => layer.out_features(),
        }
    }

    /// x: `[m, in]`; returns `[m, out]`.
    pub fn forward(&self, x: &[f32], m: usize, ctx: &mut Context) -> Result<Vec<f32>, KernelError> {
        let mut y = vec![0f32; m * self.out_features()];
        match self {
            Linear::Dense { weight, bias } => {
                weight.product(x, m, &mut y);
                if let Some(bias) = bias {
                    add_rows(&mut y, bias);
                }
            }
            Linear::Packed(layer) => {
                layer.forward(x, m, &mut y, ctx.options, &mut ctx.scratch)?;
            }
            Linear::Carrier(layer) => {
                layer.forward(x, m, &mut y, ctx.options, &mut ctx.scratch)?;
            }
        }
        Ok(y)
    }

    /// The first `width` outputs: `[m, width]`. Only a dense weight saves the work of the rest.
    pub fn forward_first(
        &self,
        width: usize,
        x: &[f32],
        m: usize,
        ctx: &mut Context,
    ) -> Result<Vec<f32>, KernelError> {
        let full = self.out_features();
        match self {
            Linear::Dense { weight, bias: None } => {
                let mut y = vec![0f32; m * width];
                weight.product(x, m, &mut y);
                Ok(y)
            }
            _ if width == full => self.forward(x, m, ctx),
            _ => {
                let y = self.forward(x, m, ctx)?;
                Ok(y.chunks_exact(full).flat_map(|row| &row[..width]).copied().collect())
            }
        }
    }

    /// Row `index` of W, `[in]`: the embedding of a token.
    pub fn row(
        &self,
        index: usize,
        numerics: Numerics,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        match self {
            Linear::Dense { weight, .. } => {
                weight.row(index, out);
                Ok(())
            }
            Linear::Packed(layer) => layer.row(index, numerics, out),
            Linear::Carrier(_) => Err(KernelError::RowAccess),
        }
    }
}

/// q, k and v of one input; layers that are all packed share its rotation.
pub(crate) fn forward_three(
    layers: [&Linear; 3],
    x: &[f32],
    m: usize,
    ctx: &mut Context,
) -> Result<[Vec<f32>; 3], KernelError> {
    if let [Linear::Packed(a), Linear::Packed(b), Linear::Packed(c)] = layers {
        let mut ys = [a, b, c].map(|layer| vec![0f32; m * layer.out_features()]);
        let mut outputs = ys.each_mut().map(Vec::as_mut_slice);
        forward_shared(&[a, b, c], x, m, &mut outputs, ctx.options, &mut ctx.scratch)?;
        return Ok(ys);
    }
    let [a, b, c] = layers;
    Ok([a.forward(x, m, ctx)?, b.forward(x, m, ctx)?, c.forward(x, m, ctx)?])
}

/// `act(x G^T) * (x U^T)`, `[m, out]`.
pub(crate) fn gated(
    gate: &Linear,
    up: &Linear,
    activation: Activation,
    x: &[f32],
    m: usize,
    ctx: &mut Context,
) -> Result<Vec<f32>, KernelError> {
    if let (Linear::Packed(gate), Linear::Packed(up)) = (gate, up) {
        let function = match activation {
            Activation::Silu => Gate::Silu,
            Activation::GeluTanh => Gate::GeluTanh,
        };
        let mut y = vec![0f32; m * gate.out_features()];
        gate_up(gate, up, x, m, &mut y, function, ctx.options, &mut ctx.scratch)?;
        return Ok(y);
    }
    let mut y = gate.forward(x, m, ctx)?;
    let up = up.forward(x, m, ctx)?;
    let apply = match activation {
        Activation::Silu => silu,
        Activation::GeluTanh => gelu_tanh,
    };
    for (y, up) in y.iter_mut().zip(&up) {
        *y = apply(*y) * up;
    }
    Ok(y)
}
