//! What a decoder does between its linear layers: norms, heads, attention and gates, in f32.

use super::error::check_len;
use super::kv::CudaStep;
use super::launch::{Shape, arguments, launch};
use super::linear::{PIECE, PIECE_THREADS, RotationSide};
use super::program::{Family, Kernel, Source};
use super::{CudaError, Device};
use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};

/// Query heads of one thread block of the attention at most: its registers hold them.
const MAX_GROUP: usize = 8;
/// Parts of the context that a query is split into at most.
const MAX_SPLITS: usize = 32;
/// Blocks a multiprocessor that the splits aim at.
const BLOCKS_A_PROCESSOR: usize = 2;

/// The gate's nonlinearity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CudaGate {
    Silu = 1,
    GeluTanh = 2,
}

/// The shape of the attention of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CudaHeads {
    pub heads: usize,
    pub kv_heads: usize,
    /// Elements of a head, even.
    pub head_dim: usize,
    /// The layer's index in the cache.
    pub layer: usize,
    /// Factor of q . k.
    pub scale: f32,
    /// Positions that a query sees, itself included.
    pub window: Option<usize>,
    /// Added to the mean square in the norms of heads.
    pub eps: f32,
}

/// Weights of the norms of heads, `[head_dim]`, and the rotary embedding's frequencies, `[head_dim / 2]`
/// radians a position.
#[derive(Debug, Clone, Copy)]
pub struct HeadWeights<'a> {
    pub q_norm: Option<&'a CudaSlice<f32>>,
    pub k_norm: Option<&'a CudaSlice<f32>>,
    pub frequencies: &'a CudaSlice<f32>,
}

/// A residual stream's addition: sums of a product, the output side that they still have to pass, and
/// the weight of a norm after that.
#[derive(Debug, Clone, Copy)]
pub struct Addition<'a> {
    pub sums: &'a CudaSlice<f32>,
    pub side: RotationSide<'a>,
    pub norm: Option<&'a CudaSlice<f32>>,
}

/// Elements of a row whose rotations [`add_norm`] can do.
pub const MAX_ROTATED_WIDTH: usize = 16 * PIECE;

fn kernel(
    device: &Device,
    function: &'static str,
    macros: Vec<(&'static str, u32)>,
) -> Result<Kernel, CudaError> {
    device.kernel(Source { family: Family::Decoder, function, macros })
}

fn check_at_least(what: &'static str, found: usize, expected: usize) -> Result<(), CudaError> {
    check_len(what, found.min(expected), expected)
}

fn pointer<T>(device: &Device, values: Option<&CudaSlice<T>>) -> u64 {
    values.map_or(0, |values| values.device_ptr(device.stream()).0)
}

/// `x <- x + addition`, then `out <- x / sqrt(mean(x^2) + eps) * weight` under the input side `side`, for
/// `m` rows of `weight.len()` elements.
///
/// Errors when a buffer is shorter than that, or rows longer than [`MAX_ROTATED_WIDTH`] are to be
/// rotated.
#[expect(clippy::too_many_arguments, reason = "what a norm between two products reads and writes")]
pub fn add_norm(
    device: &Device,
    x: &mut CudaSlice<f32>,
    addition: Option<Addition>,
    weight: &CudaSlice<f32>,
    eps: f32,
    m: usize,
    side: RotationSide,
    out: &mut CudaSlice<f32>,
) -> Result<(), CudaError> {
    let width = weight.len();
    check_at_least("x", x.len(), m * width)?;
    check_at_least("out", out.len(), m * width)?;
    if let Some(addition) = &addition {
        check_at_least("addition", addition.sums.len(), m * width)?;
        check_len("norm", addition.norm.map_or(width, CudaSlice::len), width)?;
    }
    let stream = device.stream();
    let added = pointer(device, addition.map(|a| a.sums));
    let post = pointer(device, addition.and_then(|a| a.norm));
    let before = addition.map(|a| a.side).unwrap_or_default();
    let (x, out) = (x.device_ptr_mut(stream).0, out.device_ptr_mut(stream).0);
    let weight = weight.device_ptr(stream).0;
    let grid = [m as u32, 1, 1];
    let (wide, width) = (width > MAX_ROTATED_WIDTH, width as u32);
    if !wide {
        let pieces = width.div_ceil(PIECE as u32);
        let held = if pieces > 8 { 8 } else { 4 };
        let kernel = kernel(device, "residual", vec![("RESIDUAL", 1), ("HELD", held)])?;
        let block = pieces * PIECE as u32 / held;
        let shape = Shape { grid, block, shared: 4 * pieces * PIECE as u32, overlap: true };
        let mut arguments = arguments![x, added, before, post, weight, side, out, width, eps];
        // SAFETY: all buffers were checked to hold m rows of `width`, weights one; the sides are those
        // of layers of this width.
        return unsafe { launch(device, &kernel, shape, &mut arguments) };
    }
    check_len("rotated rows", if before.is_nothing() && side.is_nothing() { 0 } else { m }, 0)?;
    let kernel = kernel(device, "rms_norm", vec![("NORM", 1)])?;
    let mut arguments = arguments![x, added, post, weight, out, width, eps];
    let shape = Shape { grid, block: 1024, shared: 0, overlap: true };
    // SAFETY: all buffers were checked to hold m rows of `width`, weights one.
    unsafe { launch(device, &kernel, shape, &mut arguments) }
}

/// Sums of q, k and v before their output sides.
#[derive(Debug, Clone, Copy)]
pub struct HeadSides<'a> {
    pub q: RotationSide<'a>,
    pub k: RotationSide<'a>,
    pub v: RotationSide<'a>,
}

impl CudaHeads {
    fn check(&self, step: &CudaStep, q: usize, kv: [usize; 2]) -> Result<(), CudaError> {
        let m = step.rows();
        check_at_least("q", q, m * self.heads * self.head_dim)?;
        for len in kv {
            check_at_least("k or v", len, m * self.kv_heads * self.head_dim)?;
        }
        check_len("cache", step.shape().width, self.kv_heads * self.head_dim)?;
        check_at_least("layers", step.shape().layers, self.layer + 1)
    }

    /// Norms and rotates the heads of `q` (`[m, heads, head_dim]`, in place) and `k`, and puts k and v
    /// (`[m, kv_heads, head_dim]`) at the step's positions in the caches.
    ///
    /// Errors when a buffer is shorter than that.
    pub fn prepare(
        &self,
        device: &Device,
        step: &CudaStep,
        weights: HeadWeights,
        q: &mut CudaSlice<f32>,
        k: &CudaSlice<f32>,
        v: &CudaSlice<f32>,
    ) -> Result<(), CudaError> {
        self.check(step, q.len(), [k.len(), v.len()])?;
        check_len("frequencies", weights.frequencies.len(), self.head_dim / 2)?;
        for norm in [weights.q_norm, weights.k_norm].into_iter().flatten() {
            check_len("norm", norm.len(), self.head_dim)?;
        }
        let kernel = kernel(device, "heads", vec![("HEADS", 1)])?;
        let stream = device.stream();
        let (rows, q) = (step.pointer(), q.device_ptr_mut(stream).0);
        let (k, v) = (k.device_ptr(stream).0, v.device_ptr(stream).0);
        let (q_norm, k_norm) = (pointer(device, weights.q_norm), pointer(device, weights.k_norm));
        let frequencies = weights.frequencies.device_ptr(stream).0;
        let (heads, kv_heads) = (self.heads as u32, self.kv_heads as u32);
        let dim = self.head_dim as u32;
        let (start, stride) = (step.shape().layer_start(self.layer), step.shape().stride());
        let shape = Shape {
            grid: [heads + 2 * kv_heads, step.rows() as u32, 1],
            block: (dim / 2).next_multiple_of(32),
            shared: 0,
            overlap: true,
        };
        let mut arguments = arguments![
            rows,
            q,
            k,
            v,
            q_norm,
            k_norm,
            frequencies,
            heads,
            kv_heads,
            dim,
            start,
            stride,
            self.eps
        ];
        // SAFETY: lengths were checked; the step's rows point into caches of its shape, behind whose
        // capacity no position lies.
        unsafe { launch(device, &kernel, shape, &mut arguments) }
    }

    /// Whether [`prepare_rotated`](Self::prepare_rotated) knows heads of this length.
    pub fn rotates(head_dim: usize) -> bool {
        PIECE.is_multiple_of(head_dim) && head_dim.is_multiple_of(2)
    }

    /// [`prepare`](Self::prepare) for sums whose output sides are still to be applied.
    ///
    /// Errors when a buffer is too short, or the heads are not those that [`rotates`](Self::rotates)
    /// names.
    #[expect(clippy::too_many_arguments, reason = "as `prepare`, with the sides")]
    pub fn prepare_rotated(
        &self,
        device: &Device,
        step: &CudaStep,
        weights: HeadWeights,
        sides: HeadSides,
        q: &mut CudaSlice<f32>,
        k: &CudaSlice<f32>,
        v: &CudaSlice<f32>,
    ) -> Result<(), CudaError> {
        self.check(step, q.len(), [k.len(), v.len()])?;
        check_len("head", usize::from(Self::rotates(self.head_dim)), 1)?;
        check_len("frequencies", weights.frequencies.len(), self.head_dim / 2)?;
        for norm in [weights.q_norm, weights.k_norm].into_iter().flatten() {
            check_len("norm", norm.len(), self.head_dim)?;
        }
        let kernel = kernel(device, "rotated_heads", vec![("ROTATED_HEADS", 1)])?;
        let stream = device.stream();
        let (rows, q) = (step.pointer(), q.device_ptr_mut(stream).0);
        let (k, v) = (k.device_ptr(stream).0, v.device_ptr(stream).0);
        let (q_norm, k_norm) = (pointer(device, weights.q_norm), pointer(device, weights.k_norm));
        let frequencies = weights.frequencies.device_ptr(stream).0;
        let [q_width, kv_width] = [self.heads, self.kv_heads].map(|n| (n * self.head_dim) as u32);
        let dim = self.head_dim as u32;
        let (start, stride) = (step.shape().layer_start(self.layer), step.shape().stride());
        let pieces = |width: u32| width.div_ceil(PIECE as u32);
        let grid = [pieces(q_width) + 2 * pieces(kv_width), step.rows() as u32, 1];
        let shape = Shape { grid, block: PIECE_THREADS, shared: 0, overlap: true };
        let HeadSides { q: q_side, k: k_side, v: v_side } = sides;
        let mut arguments = arguments![
            rows,
            q,
            k,
            v,
            q_side,
            k_side,
            v_side,
            q_norm,
            k_norm,
            frequencies,
            q_width,
            kv_width,
            dim,
            start,
            stride,
            self.eps
        ];
        // SAFETY: as for `prepare`; the sides are those of layers of these widths.
        unsafe { launch(device, &kernel, shape, &mut arguments) }
    }

    /// Query heads of a thread block.
    fn group(&self) -> usize {
        let shared = self.heads / self.kv_heads;
        let group = (1..=MAX_GROUP.min(shared)).rev().find(|g| shared.is_multiple_of(*g));
        group.unwrap_or(1)
    }

    /// Whether [`attend`](Self::attend) can put its result under this input side.
    pub fn rotates_result(&self, side: &RotationSide) -> bool {
        side.block() <= PIECE && (self.group() * self.head_dim).is_multiple_of(side.block())
    }

    /// Causal attention of every row of `q` (`[m, heads, head_dim]`, replaced by the result under the
    /// input side `side`) over the positions of its cache up to its own.
    ///
    /// Errors when `q` is shorter than that, or for a side that
    /// [`rotates_result`](Self::rotates_result) refuses.
    pub fn attend(
        &self,
        device: &Device,
        step: &CudaStep,
        q: &mut CudaSlice<f32>,
        side: RotationSide,
    ) -> Result<(), CudaError> {
        self.check(step, q.len(), [usize::MAX; 2])?;
        check_len("rotated heads", usize::from(self.rotates_result(&side)), 1)?;
        let m = step.rows();
        let group = self.group();
        let blocks = m * self.heads / group;
        let wanted = device.processors() as usize * BLOCKS_A_PROCESSOR;
        let splits = if blocks > Device::counters() { 1 } else { wanted / blocks };
        let splits = splits.clamp(1, MAX_SPLITS);
        let floats = if splits == 1 { 0 } else { m * self.heads * splits * (self.head_dim + 2) };
        let macros = vec![("ATTENTION", 1), ("DIM", self.head_dim as u32), ("GROUP", group as u32)];
        let kernel = kernel(device, "attention", macros)?;
        let workspace = device.workspace(floats, 0)?;
        let stream = device.stream();
        let (rows, q) = (step.pointer(), q.device_ptr_mut(stream).0);
        let partial = workspace.partial.device_ptr(stream).0;
        let counters = workspace.counters.device_ptr(stream).0;
        let (heads, kv_heads) = (self.heads as u32, self.kv_heads as u32);
        let (start, stride) = (step.shape().layer_start(self.layer), step.shape().stride());
        let window = self.window.unwrap_or(0) as u32;
        let grid = [splits as u32, heads / group as u32, m as u32];
        let shape = Shape { grid, block: 128, shared: 0, overlap: true };
        let mut arguments = arguments![
            rows, q, partial, counters, heads, kv_heads, start, stride, window, self.scale, side
        ];
        // SAFETY: as for `prepare`; the workspace holds the parts, and its counters are zero between
        // launches.
        unsafe { launch(device, &kernel, shape, &mut arguments) }
    }
}

/// `gate <- act(gate) * up` for the first `count` elements.
///
/// Errors when a buffer is shorter than that.
pub fn apply_gate(
    device: &Device,
    gate: CudaGate,
    values: &mut CudaSlice<f32>,
    up: &CudaSlice<f32>,
    count: usize,
) -> Result<(), CudaError> {
    check_at_least("gate", values.len(), count)?;
    check_at_least("up", up.len(), count)?;
    let kernel = kernel(device, "gated", vec![("GATED", gate as u32)])?;
    let stream = device.stream();
    let (values, up) = (values.device_ptr_mut(stream).0, up.device_ptr(stream).0);
    let count = count as u64;
    let shape = Shape { overlap: true, ..Shape::elements(count) };
    // SAFETY: both buffers were checked to hold `count` elements.
    unsafe { launch(device, &kernel, shape, &mut arguments![values, up, count]) }
}

/// [`apply_gate`] between products: `gate` and `up` are `m` rows of `width` sums before their output
/// sides, and the result is under the input side `to` of the product that reads it.
///
/// Errors when a buffer is shorter than that.
pub fn apply_rotated_gate(
    device: &Device,
    gate: CudaGate,
    values: &mut CudaSlice<f32>,
    up: &CudaSlice<f32>,
    [gate_side, up_side, to]: [RotationSide; 3],
    [m, width]: [usize; 2],
) -> Result<(), CudaError> {
    check_at_least("gate", values.len(), m * width)?;
    check_at_least("up", up.len(), m * width)?;
    let kernel = kernel(device, "rotated_gate", vec![("ROTATED_GATE", gate as u32)])?;
    let stream = device.stream();
    let (values, up) = (values.device_ptr_mut(stream).0, up.device_ptr(stream).0);
    let grid = [width.div_ceil(PIECE) as u32, m as u32, 1];
    let shape = Shape { grid, block: PIECE_THREADS, shared: 0, overlap: true };
    let width = width as u32;
    let mut arguments = arguments![values, up, gate_side, up_side, to, width];
    // SAFETY: both buffers were checked; the sides are those of layers of this width.
    unsafe { launch(device, &kernel, shape, &mut arguments) }
}
