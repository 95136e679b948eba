//! The decoder on an NVIDIA GPU: activations in f32, keys and values in f16.
//!
//! Embeddings are looked up on the host. A step of one token a sequence is recorded once for each number
//! of sequences and replayed: what differs between steps lies in two buffers that are filled before.

use super::linear::Linear;
use super::{FeedForward, KvCache, Layer, Model, ModelError, RuntimeOptions, SequenceStep};
use crate::config::{Activation, ModelConfig};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use trelliq_kernels::cuda::{
    Addition, CacheShape, CudaCache, CudaDense, CudaError, CudaGate, CudaGraph, CudaHeads,
    CudaLinear, CudaOptions, CudaReader, CudaScratch, CudaSlice, CudaStep, Device, HeadSides,
    HeadWeights, MAX_ROTATED_WIDTH, RotationSide, Terms, add_norm, apply_gate, apply_rotated_gate,
    device_count, gather_rows, write,
};
use trelliq_kernels::{Activations, Numerics};

/// Rows of a step that are computed at once: bounds the buffers of a long prompt.
const MAX_ROWS: usize = 2048;
/// Rows up to which a step is recorded.
const RECORDED_ROWS: usize = 8;
/// Device memory that a model leaves for buffers and caches when its place is chosen.
const SPARE_BYTES: usize = 1 << 30;

/// Opens a GPU and what its kernels need.
pub(super) fn open(ordinal: usize) -> Result<Arc<Device>, CudaError> {
    let device = Device::open(ordinal)?;
    device.check_libraries()?;
    Ok(device)
}

/// The first GPU that has room for a model of `bytes`; else why the last one that was tried is not it.
pub(super) fn open_for(bytes: usize) -> Result<Arc<Device>, CudaError> {
    let wanted = bytes + SPARE_BYTES;
    let fitting = |ordinal| {
        let device = open(ordinal)?;
        let (free, _) = device.memory()?;
        if free < wanted {
            return Err(CudaError::Memory { name: device.name().to_owned(), free, wanted });
        }
        Ok(device)
    };
    let mut tried = fitting(0);
    for ordinal in 1..device_count() {
        if tried.is_ok() {
            break;
        }
        tried = fitting(ordinal);
    }
    tried
}

#[derive(Debug)]
enum Weight {
    Dense(CudaDense),
    Packed(Box<CudaLinear>),
}

#[derive(Debug)]
struct GpuLayer {
    attention_norm: CudaSlice<f32>,
    qkv: [Weight; 3],
    output: Weight,
    q_norm: Option<CudaSlice<f32>>,
    k_norm: Option<CudaSlice<f32>>,
    post_attention_norm: Option<CudaSlice<f32>>,
    feed_forward_norm: CudaSlice<f32>,
    gate_up: [Weight; 2],
    down: Weight,
    post_feed_forward_norm: Option<CudaSlice<f32>>,
    frequencies: CudaSlice<f32>,
    /// Whether the kernels between the products do all rotations.
    rotated_between: bool,
}

/// The layers of a [`Model`] in a GPU's memory.
#[derive(Debug)]
pub(super) struct CudaDecoder {
    device: Arc<Device>,
    layers: Vec<GpuLayer>,
    final_norm: CudaSlice<f32>,
    head: Weight,
    state: Mutex<State>,
}

/// What a step works in.
#[derive(Debug, Default)]
struct State {
    buffers: Option<Buffers>,
    scratch: CudaScratch,
    recorded: Recorded,
    reader: CudaReader,
}

/// Recorded steps, of the buffers as they lie now.
#[derive(Debug, Default)]
struct Recorded {
    /// [`Device::moves`] when they were made.
    moves: u64,
    graphs: HashMap<StepKey, CudaGraph>,
    /// Steps that have run, so that their kernels are loaded and their buffers large enough.
    seen: HashSet<StepKey>,
}

type StepKey = (usize, bool, Terms);

/// Activations of `rows` rows.
#[derive(Debug)]
struct Buffers {
    rows: usize,
    step: CudaStep,
    x: CudaSlice<f32>,
    normed: CudaSlice<f32>,
    q: CudaSlice<f32>,
    k: CudaSlice<f32>,
    v: CudaSlice<f32>,
    gate: CudaSlice<f32>,
    up: CudaSlice<f32>,
    added: CudaSlice<f32>,
    /// Logits, and the rows of normed states that they are made of.
    picked: CudaSlice<f32>,
    logits: CudaSlice<f32>,
    logit_rows: usize,
}

impl CudaDecoder {
    /// Copies a loaded model's layers to the GPU.
    pub fn upload(device: Arc<Device>, model: &Model) -> Result<Self, ModelError> {
        let config = &model.config;
        let layers = model.layers.iter().enumerate();
        let layers = layers.map(|(index, layer)| GpuLayer::upload(&device, config, index, layer));
        let layers = layers.collect::<Result<_, ModelError>>()?;
        let head = Weight::upload(&device, model.head.as_ref().unwrap_or(&model.embedding))?;
        let final_norm = device.upload(&model.final_norm)?;
        device.synchronize()?;
        Ok(Self { device, layers, final_norm, head, state: Mutex::default() })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn new_cache(&self, config: &ModelConfig) -> KvCache {
        KvCache::on_gpu(config, CudaCache::new(&self.device, shape(config)))
    }

    /// The normed states of the rows that `wanted` names, or their logits: `[rows, width]`, f32.
    pub fn forward(
        &self,
        model: &Model,
        steps: &mut [SequenceStep],
        wanted: Wanted,
        options: &RuntimeOptions,
    ) -> Result<Vec<f32>, ModelError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for step in steps.iter_mut() {
            step.cache.reserve(step.tokens.len())?;
        }
        let mut found = Vec::new();
        for piece in pieces(steps) {
            let run = Run { decoder: self, model, options: cuda_options(options) };
            found.extend(run.piece(&mut state, steps, &piece, wanted, options)?);
        }
        for step in steps {
            step.cache.commit(step.tokens);
        }
        Ok(found)
    }

    /// Logits `[rows, vocab]` of normed states.
    pub fn logits(
        &self,
        model: &Model,
        hidden: &[f32],
        options: &RuntimeOptions,
    ) -> Result<Vec<f32>, ModelError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let m = hidden.len() / model.config.hidden_size;
        let run = Run { decoder: self, model, options: cuda_options(options) };
        run.make_room(&mut state, 1, m)?;
        let State { buffers, scratch, reader, .. } = &mut *state;
        let buffers = buffers.as_mut().expect("made above");
        write(&self.device, hidden, &mut buffers.picked)?;
        let (picked, logits) = (&buffers.picked, &mut buffers.logits);
        self.head.forward(picked, m, logits, &run.options, scratch)?;
        run.read_logits(reader, buffers, m)
    }
}

/// What a step is run for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Normed states of every token.
    Hidden,
    /// Logits of every token.
    AllLogits,
    /// Logits of every sequence's last token.
    LastLogits,
}

/// Rows that are computed at once: sequences, each with a range of its step's tokens.
type Piece = Vec<(usize, Range<usize>)>;

fn pieces(steps: &[SequenceStep]) -> Vec<Piece> {
    let (mut all, mut rows) = (vec![Piece::new()], 0);
    for (index, step) in steps.iter().enumerate() {
        let mut start = 0;
        while start < step.tokens.len() {
            if rows == MAX_ROWS {
                all.push(Piece::new());
                rows = 0;
            }
            let end = step.tokens.len().min(start + MAX_ROWS - rows);
            all.last_mut().expect("has one").push((index, start..end));
            rows += end - start;
            start = end;
        }
    }
    all
}

fn shape(config: &ModelConfig) -> CacheShape {
    CacheShape { layers: config.layers.len(), width: config.kv_width() }
}

/// The GPU's counterparts: activations in f32 become sums to 1e-6 and products in f32.
fn cuda_options(options: &RuntimeOptions) -> CudaOptions {
    let exact = options.kernel.activations == Activations::F32;
    CudaOptions {
        numerics: options.kernel.numerics,
        terms: if exact { Terms::Three } else { Terms::Two },
        tf32: !exact && options.kernel.numerics == Numerics::Fast,
        ..CudaOptions::default()
    }
}

/// One step.
struct Run<'a> {
    decoder: &'a CudaDecoder,
    model: &'a Model,
    options: CudaOptions,
}

impl Run<'_> {
    fn piece(
        &self,
        state: &mut State,
        steps: &[SequenceStep],
        piece: &Piece,
        wanted: Wanted,
        options: &RuntimeOptions,
    ) -> Result<Vec<f32>, ModelError> {
        let device = &self.decoder.device;
        let m = piece.iter().map(|(_, range)| range.len()).sum();
        let picked = self.picked(steps, piece, wanted, m);
        let logit_rows = if wanted == Wanted::Hidden { 1 } else { picked.len() };
        self.make_room(state, m, logit_rows)?;
        let tokens: Vec<u32> =
            piece.iter().flat_map(|(i, range)| &steps[*i].tokens[range.clone()]).copied().collect();
        let x = self.model.embed(&tokens, options)?;
        let State { buffers, scratch, recorded, reader } = state;
        let buffers = buffers.as_mut().expect("made above");
        let mut sequences = Vec::with_capacity(piece.len());
        for (sequence, range) in piece {
            let cache = &steps[*sequence].cache;
            let known = cache.len();
            let on_gpu = cache.cuda().ok_or(ModelError::Cache { sequence: *sequence })?;
            sequences.push((on_gpu, known + range.start..known + range.end));
        }
        buffers.step.fill(&sequences)?;
        write(device, &x, &mut buffers.x)?;
        let every_row = picked.len() == m;
        if wanted != Wanted::Hidden && every_row && m <= RECORDED_ROWS {
            self.recorded(m, buffers, scratch, recorded)?;
            return self.read_logits(reader, buffers, m);
        }
        self.layers(m, buffers, scratch)?;
        let width = self.model.config.hidden_size;
        if wanted == Wanted::Hidden {
            return Ok(reader.read(device, &buffers.normed, m * width)?);
        }
        if picked.is_empty() {
            return Ok(Vec::new());
        }
        gather_rows(device, &buffers.normed, width, &picked, &mut buffers.picked)?;
        let head = &self.decoder.head;
        head.forward(&buffers.picked, picked.len(), &mut buffers.logits, &self.options, scratch)?;
        self.read_logits(reader, buffers, picked.len())
    }

    /// The piece's rows whose logits are wanted.
    fn picked(
        &self,
        steps: &[SequenceStep],
        piece: &Piece,
        wanted: Wanted,
        m: usize,
    ) -> Vec<usize> {
        if wanted != Wanted::LastLogits {
            return (0..m).collect();
        }
        let mut end = 0;
        let mut last = Vec::new();
        for (sequence, range) in piece {
            end += range.len();
            if range.end == steps[*sequence].tokens.len() {
                last.push(end - 1);
            }
        }
        last
    }

    /// Layers and head of `m` rows, replayed where they have been recorded.
    fn recorded(
        &self,
        m: usize,
        buffers: &mut Buffers,
        scratch: &mut CudaScratch,
        recorded: &mut Recorded,
    ) -> Result<(), ModelError> {
        let device = &self.decoder.device;
        let key = (m, self.options.numerics == Numerics::Exact, self.options.terms);
        if recorded.moves != device.moves() {
            recorded.graphs.clear();
            recorded.seen.clear();
            recorded.moves = device.moves();
        }
        if let Some(graph) = recorded.graphs.get(&key) {
            return Ok(graph.launch()?);
        }
        let mut work = || -> Result<(), ModelError> {
            self.layers(m, buffers, scratch)?;
            let head = &self.decoder.head;
            head.forward(&buffers.normed, m, &mut buffers.logits, &self.options, scratch)?;
            Ok(())
        };
        if recorded.seen.insert(key) {
            return work();
        }
        let graph = CudaGraph::record(device, work)?;
        graph.launch()?;
        recorded.graphs.insert(key, graph);
        Ok(())
    }

    fn make_room(
        &self,
        state: &mut State,
        rows: usize,
        logit_rows: usize,
    ) -> Result<(), ModelError> {
        let enough = |b: &Buffers| b.rows >= rows && b.logit_rows >= logit_rows;
        if state.buffers.as_ref().is_some_and(enough) {
            return Ok(());
        }
        let old = state.buffers.take();
        let at_least = |old: Option<usize>, new: usize| old.unwrap_or(RECORDED_ROWS).max(new);
        let rows = at_least(old.as_ref().map(|b| b.rows), rows);
        let logit_rows = at_least(old.as_ref().map(|b| b.logit_rows), logit_rows);
        drop(old);
        state.recorded = Recorded::default();
        let (device, config) = (&self.decoder.device, &self.model.config);
        let zeros = |width: usize| device.zeros::<f32>(rows * width);
        state.buffers = Some(Buffers {
            rows,
            step: CudaStep::new(device, shape(config), rows)?,
            x: zeros(config.hidden_size)?,
            normed: zeros(config.hidden_size)?,
            q: zeros(config.q_width())?,
            k: zeros(config.kv_width())?,
            v: zeros(config.kv_width())?,
            gate: zeros(config.intermediate_size)?,
            up: zeros(config.intermediate_size)?,
            added: zeros(config.hidden_size)?,
            picked: device.zeros(logit_rows * config.hidden_size)?,
            logits: device.zeros(logit_rows * self.decoder.head.out_features())?,
            logit_rows,
        });
        Ok(())
    }

    /// From `x` to `normed`, behind the last norm.
    fn layers(
        &self,
        m: usize,
        b: &mut Buffers,
        scratch: &mut CudaScratch,
    ) -> Result<(), CudaError> {
        let device = &*self.decoder.device;
        let eps = self.model.config.rms_norm_eps;
        let mut before: Option<(RotationSide, Option<&CudaSlice<f32>>)> = None;
        for (index, layer) in self.decoder.layers.iter().enumerate() {
            let addition = before.map(|(side, norm)| Addition { sums: &b.added, side, norm });
            let [q, _, _] = &layer.qkv;
            let (side, norm) = (layer.input_side(q), &layer.attention_norm);
            add_norm(device, &mut b.x, addition, norm, eps, m, side, &mut b.normed)?;
            self.attention(index, layer, m, b, scratch)?;
            let norm = layer.post_attention_norm.as_ref();
            let side = layer.output_side(&layer.output);
            let addition = Some(Addition { sums: &b.added, side, norm });
            let [gate, _] = &layer.gate_up;
            let (side, norm) = (layer.input_side(gate), &layer.feed_forward_norm);
            add_norm(device, &mut b.x, addition, norm, eps, m, side, &mut b.normed)?;
            self.feed_forward(layer, m, b, scratch)?;
            let norm = layer.post_feed_forward_norm.as_ref();
            before = Some((layer.output_side(&layer.down), norm));
        }
        let addition = before.map(|(side, norm)| Addition { sums: &b.added, side, norm });
        let (norm, side) = (&self.decoder.final_norm, RotationSide::default());
        add_norm(device, &mut b.x, addition, norm, eps, m, side, &mut b.normed)
    }

    /// From `normed` to `added`.
    fn attention(
        &self,
        index: usize,
        layer: &GpuLayer,
        m: usize,
        b: &mut Buffers,
        scratch: &mut CudaScratch,
    ) -> Result<(), CudaError> {
        let (device, options) = (&*self.decoder.device, &self.options);
        let heads = self.heads(index);
        let weights = HeadWeights {
            q_norm: layer.q_norm.as_ref(),
            k_norm: layer.k_norm.as_ref(),
            frequencies: &layer.frequencies,
        };
        if layer.rotated_between {
            let outputs = &mut [&mut b.q, &mut b.k, &mut b.v];
            joined_sums(layer.qkv.each_ref(), &b.normed, m, outputs, options, scratch)?;
            let [q, k, v] = &layer.qkv;
            let sides = HeadSides { q: q.output_side(), k: k.output_side(), v: v.output_side() };
            heads.prepare_rotated(device, &b.step, weights, sides, &mut b.q, &b.k, &b.v)?;
            let side = layer.output.input_side();
            if heads.rotates_result(&side) {
                heads.attend(device, &b.step, &mut b.q, side)?;
                return layer.output.sums(&b.q, m, &mut b.added, options, scratch);
            }
            heads.attend(device, &b.step, &mut b.q, RotationSide::default())?;
            return layer.output.sums_of_inputs(&b.q, m, &mut b.added, options, scratch);
        }
        let outputs = &mut [&mut b.q, &mut b.k, &mut b.v];
        forward_shared(layer.qkv.each_ref(), &b.normed, m, outputs, options, scratch)?;
        heads.prepare(device, &b.step, weights, &mut b.q, &b.k, &b.v)?;
        heads.attend(device, &b.step, &mut b.q, RotationSide::default())?;
        layer.output.forward(&b.q, m, &mut b.added, options, scratch)
    }

    /// From `normed` to `added`.
    fn feed_forward(
        &self,
        layer: &GpuLayer,
        m: usize,
        b: &mut Buffers,
        scratch: &mut CudaScratch,
    ) -> Result<(), CudaError> {
        let (device, options) = (&*self.decoder.device, &self.options);
        let function = match self.model.config.activation {
            Activation::Silu => CudaGate::Silu,
            Activation::GeluTanh => CudaGate::GeluTanh,
        };
        let width = layer.down.in_features();
        if layer.rotated_between {
            let outputs = &mut [&mut b.gate, &mut b.up];
            joined_sums(layer.gate_up.each_ref(), &b.normed, m, outputs, options, scratch)?;
            let [gate, up] = &layer.gate_up;
            let sides = [gate.output_side(), up.output_side(), layer.down.input_side()];
            apply_rotated_gate(device, function, &mut b.gate, &b.up, sides, [m, width])?;
            return layer.down.sums(&b.gate, m, &mut b.added, options, scratch);
        }
        let outputs = &mut [&mut b.gate, &mut b.up];
        forward_shared(layer.gate_up.each_ref(), &b.normed, m, outputs, options, scratch)?;
        apply_gate(device, function, &mut b.gate, &b.up, m * width)?;
        layer.down.forward(&b.gate, m, &mut b.added, options, scratch)
    }

    fn heads(&self, layer: usize) -> CudaHeads {
        let config = &self.model.config;
        CudaHeads {
            heads: config.num_heads,
            kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            layer,
            scale: config.attention_scale,
            window: config.layers[layer].window,
            eps: config.rms_norm_eps,
        }
    }

    /// `m` rows of logits, cut to the model's vocabulary.
    fn read_logits(
        &self,
        reader: &mut CudaReader,
        buffers: &Buffers,
        m: usize,
    ) -> Result<Vec<f32>, ModelError> {
        let full = self.decoder.head.out_features();
        let logits = reader.read(&self.decoder.device, &buffers.logits, m * full)?;
        if full == self.model.vocab {
            return Ok(logits);
        }
        let rows = logits.chunks_exact(full);
        Ok(rows.flat_map(|row| &row[..self.model.vocab]).copied().collect())
    }
}

impl GpuLayer {
    fn upload(
        device: &Arc<Device>,
        config: &ModelConfig,
        index: usize,
        layer: &Layer,
    ) -> Result<Self, ModelError> {
        let weight = |linear: &Linear| Weight::upload(device, linear);
        let norm = |norm: &Option<Vec<f32>>| norm.as_ref().map(|n| device.upload(n)).transpose();
        let attention = &layer.attention;
        let FeedForward { gate, up, down } = &layer.feed_forward;
        let frequencies = config.layers[index].rope.inverse_frequencies(config.head_dim);
        let qkv = [weight(&attention.q)?, weight(&attention.k)?, weight(&attention.v)?];
        let gate_up = [weight(gate)?, weight(up)?];
        let (output, down) = (weight(&attention.output)?, weight(down)?);
        let rotated_between = rotates_between(config, &qkv, &gate_up, [&output, &down]);
        Ok(Self {
            attention_norm: device.upload(&layer.attention_norm)?,
            qkv,
            output,
            q_norm: norm(&attention.q_norm)?,
            k_norm: norm(&attention.k_norm)?,
            post_attention_norm: norm(&layer.post_attention_norm)?,
            feed_forward_norm: device.upload(&layer.feed_forward_norm)?,
            gate_up,
            down,
            post_feed_forward_norm: norm(&layer.post_feed_forward_norm)?,
            frequencies: device.upload(&frequencies)?,
            rotated_between,
        })
    }

    /// What is to be done to the inputs of `weight` before it.
    fn input_side<'a>(&self, weight: &'a Weight) -> RotationSide<'a> {
        if self.rotated_between { weight.input_side() } else { RotationSide::default() }
    }

    /// What is left to be done to the outputs of `weight`.
    fn output_side<'a>(&self, weight: &'a Weight) -> RotationSide<'a> {
        if self.rotated_between { weight.output_side() } else { RotationSide::default() }
    }
}

/// Whether the kernels between a layer's products can do all their rotations.
fn rotates_between(
    config: &ModelConfig,
    qkv: &[Weight; 3],
    gate_up: &[Weight; 2],
    others: [&Weight; 2],
) -> bool {
    let mut all = qkv.iter().chain(gate_up).chain(others);
    let of_one_input = |weights: &[Weight]| weights.iter().all(|w| w.rotates_like(&weights[0]));
    config.hidden_size <= MAX_ROTATED_WIDTH
        && CudaHeads::rotates(config.head_dim)
        && all.all(Weight::rotates_outside)
        && of_one_input(qkv)
        && of_one_input(gate_up)
}

impl Weight {
    fn upload(device: &Arc<Device>, linear: &Linear) -> Result<Self, ModelError> {
        Ok(match linear {
            Linear::Dense { weight, bias } => Self::Dense(CudaDense::upload(
                device,
                weight.all(),
                weight.cols(),
                bias.as_deref(),
            )?),
            Linear::Packed(layer) => Self::Packed(Box::new(CudaLinear::upload(device, layer)?)),
            Linear::Carrier(_) => return Err(ModelError::CarrierOnGpu),
        })
    }

    fn in_features(&self) -> usize {
        match self {
            Self::Dense(layer) => layer.in_features(),
            Self::Packed(layer) => layer.in_features(),
        }
    }

    fn out_features(&self) -> usize {
        match self {
            Self::Dense(layer) => layer.out_features(),
            Self::Packed(layer) => layer.out_features(),
        }
    }

    fn rotates_outside(&self) -> bool {
        match self {
            Self::Dense(_) => true,
            Self::Packed(layer) => layer.rotates_outside(),
        }
    }

    fn rotates_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dense(_), Self::Dense(_)) => true,
            (Self::Packed(a), Self::Packed(b)) => a.rotates_like(b),
            _ => false,
        }
    }

    fn input_side(&self) -> RotationSide<'_> {
        match self {
            Self::Dense(_) => RotationSide::default(),
            Self::Packed(layer) => layer.input_side(),
        }
    }

    fn output_side(&self) -> RotationSide<'_> {
        match self {
            Self::Dense(_) => RotationSide::default(),
            Self::Packed(layer) => layer.output_side(),
        }
    }

    /// The product between its two sides; of a dense weight that is all.
    fn sums(
        &self,
        x: &CudaSlice<f32>,
        m: usize,
        y: &mut CudaSlice<f32>,
        options: &CudaOptions,
        scratch: &mut CudaScratch,
    ) -> Result<(), CudaError> {
        match self {
            Self::Dense(layer) => layer.forward(x, m, y, scratch),
            Self::Packed(layer) => layer.sums(x, m, y, options),
        }
    }

    /// [`sums`](Self::sums) of inputs before their side.
    fn sums_of_inputs(
        &self,
        x: &CudaSlice<f32>,
        m: usize,
        y: &mut CudaSlice<f32>,
        options: &CudaOptions,
        scratch: &mut CudaScratch,
    ) -> Result<(), CudaError> {
        match self {
            Self::Dense(layer) => layer.forward(x, m, y, scratch),
            Self::Packed(layer) => layer.sums_of_inputs(x, m, y, options, scratch),
        }
    }

    fn forward(
        &self,
        x: &CudaSlice<f32>,
        m: usize,
        y: &mut CudaSlice<f32>,
        options: &CudaOptions,
        scratch: &mut CudaScratch,
    ) -> Result<(), CudaError> {
        match self {
            Self::Dense(layer) => layer.forward(x, m, y, scratch),
            Self::Packed(layer) => layer.forward(x, m, y, options, scratch),
        }
    }
}

/// The packed ones, where all are.
fn all_packed<const N: usize>(weights: [&Weight; N]) -> Option<Vec<&CudaLinear>> {
    let packed = weights.into_iter().map(|weight| match weight {
        Weight::Packed(layer) => Some(&**layer),
        Weight::Dense(_) => None,
    });
    packed.collect()
}

/// Layers of one input; those that are packed share its rotation.
fn forward_shared<const N: usize>(
    weights: [&Weight; N],
    x: &CudaSlice<f32>,
    m: usize,
    ys: &mut [&mut CudaSlice<f32>; N],
    options: &CudaOptions,
    scratch: &mut CudaScratch,
) -> Result<(), CudaError> {
    if let Some(packed) = all_packed(weights) {
        return CudaLinear::forward_shared(&packed, x, m, ys, options, scratch);
    }
    let mut pairs = weights.into_iter().zip(ys);
    pairs.try_for_each(|(weight, y)| weight.forward(x, m, y, options, scratch))
}

/// Products of one input between their sides.
fn joined_sums<const N: usize>(
    weights: [&Weight; N],
    x: &CudaSlice<f32>,
    m: usize,
    ys: &mut [&mut CudaSlice<f32>; N],
    options: &CudaOptions,
    scratch: &mut CudaScratch,
) -> Result<(), CudaError> {
    if let Some(packed) = all_packed(weights) {
        return CudaLinear::joined_sums(&packed, x, m, ys, options);
    }
    let mut pairs = weights.into_iter().zip(ys);
    pairs.try_for_each(|(weight, y)| weight.sums(x, m, y, options, scratch))
}
