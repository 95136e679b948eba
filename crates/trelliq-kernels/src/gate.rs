//! The gated pair of a feed-forward block: `act(x G^T) * (x U^T)`.

use crate::linear::check_len;
use crate::options::sized;
use crate::{Activation, Isa, KernelError, KernelOptions, Scratch, TrellisLinear, cpu};
use rayon::prelude::*;

/// The activation function of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gate {
    /// `g * sigmoid(g)`.
    Silu,
    /// GELU in its tanh form: `0.5 g (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3)))`.
    GeluTanh,
}

impl Gate {
    /// `act(gate) * up`, rounded to A wherever separate operations would store an A.
    #[inline(always)]
    pub fn apply<A: Activation>(self, gate: f32, up: f32) -> A {
        let (gate, up) = (A::from_f32(gate).to_f32(), A::from_f32(up).to_f32());
        let activated = match self {
            Gate::Silu => {
                let sigmoid: A = A::from_f32(1.0 / (1.0 + (-gate).exp()));
                A::from_f32(gate * sigmoid.to_f32())
            }
            Gate::GeluTanh => {
                let inner = 0.797_884_6 * (gate + 0.044_715 * gate * gate * gate);
                A::from_f32(0.5 * gate * (1.0 + inner.tanh()))
            }
        };
        A::from_f32(activated.to_f32() * up)
    }
}

/// `y <- act(x G^T) * (x U^T)` for `x`: `[m, in]` and `y`: `[m, out]`. When neither layer is rotated
/// on its output side the two products exist only a tile at a time.
///
/// Errors when the layers' dimensions differ or a length disagrees with them.
#[allow(clippy::too_many_arguments)] // two layers, two operands, the function and how to run it
pub fn gate_up<A: Activation>(
    gate: &TrellisLinear,
    up: &TrellisLinear,
    x: &[A],
    m: usize,
    y: &mut [A],
    function: Gate,
    options: &KernelOptions,
    scratch: &mut Scratch,
) -> Result<(), KernelError> {
    check_len("inputs of up", up.in_features(), gate.in_features())?;
    check_len("outputs of up", up.out_features(), gate.out_features())?;
    check_len("x", x.len(), m * gate.in_features())?;
    check_len("y", y.len(), m * gate.out_features())?;
    let x_gate = sized(&mut scratch.x, x.len());
    A::widen(x, x_gate);
    gate.rotate_input(x_gate);
    let x_gate = &*x_gate;
    let x_up = if gate.shares_input(up) {
        x_gate
    } else {
        let x_up = sized(&mut scratch.x2, x.len());
        A::widen(x, x_up);
        up.rotate_input(x_up);
        x_up
    };
    if fuses(gate, up, options) {
        let tiles = sized(&mut scratch.y, y.len());
        let combine = |output, g, u| {
            function.apply::<A>(gate.finish_one(output, g), up.finish_one(output, u)).to_f32()
        };
        let operands = [(gate.matrix(), x_gate), (up.matrix(), x_up)];
        cpu::multiply_pair(operands, m, tiles, options, &mut scratch.work, combine);
        A::narrow(tiles, y);
        return Ok(());
    }
    let (y_gate, y_up) = (sized(&mut scratch.y, y.len()), sized(&mut scratch.y2, y.len()));
    for (layer, x, sums) in [(gate, x_gate, &mut *y_gate), (up, x_up, &mut *y_up)] {
        cpu::multiply(layer.matrix(), x, m, sums, options, &mut scratch.work);
        layer.finish(sums);
    }
    combine(function, y_gate, y_up, y);
    Ok(())
}

/// Whether both products can be cut into the same tiles and combined there.
fn fuses(gate: &TrellisLinear, up: &TrellisLinear, options: &KernelOptions) -> bool {
    let cut = |layer: &TrellisLinear| {
        (layer.matrix().axis(), layer.matrix().trellis().block_len(), layer.out_block())
    };
    options.isa != Some(Isa::Scalar) && cut(gate) == cut(up) && !gate.mixes_outputs()
}

/// Elements that one thread combines at least.
const COMBINED: usize = 4096;

fn combine<A: Activation>(function: Gate, gates: &[f32], ups: &[f32], y: &mut [A]) {
    let pieces = y.par_chunks_mut(COMBINED).zip(gates.par_chunks(COMBINED));
    pieces.zip(ups.par_chunks(COMBINED)).for_each(|((y, gates), ups)| {
        for ((y, &gate), &up) in y.iter_mut().zip(gates).zip(ups) {
            *y = function.apply(gate, up);
        }
    });
}
