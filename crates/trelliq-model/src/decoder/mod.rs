//! The decoder: from tokens to logits, in f32, over dense or packed linear layers.

mod attention;
mod cache;
#[cfg(feature = "cuda")]
mod cuda;
mod dense;
mod device;
mod gradient;
mod linear;
mod load;
mod ops;
mod rotary;

pub use cache::KvCache;
pub use device::DeviceChoice;
pub use gradient::{GradientObserver, LinearGradient, LinearSite};

use crate::config::{AttentionConfig, ConfigError, ModelConfig, Rope};
use attention::Heads;
use linear::{Context, Linear};
use ops::{add, rms_norm};
use rayon::prelude::*;
use rotary::RotaryTable;
#[cfg(feature = "cuda")]
use trelliq_format::TensorInfo;
use trelliq_format::{FormatError, ModelSource};
use trelliq_kernels::{KernelError, KernelOptions, Scratch};

/// What can be wrong with a model or with a step of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("layer `{layer}`: {source}")]
    Layer { layer: String, source: KernelError },
    #[error("tensor `{tensor}` is missing")]
    MissingTensor { tensor: String },
    #[error("tensor `{tensor}` has shape {found:?}, the config makes it {expected:?}")]
    Shape { tensor: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("token {token} is outside of the vocabulary of {vocab}")]
    Token { token: u32, vocab: usize },
    #[error("sequence {sequence} of the step has no tokens")]
    EmptyStep { sequence: usize },
    #[error("the cache of sequence {sequence} was made for another model")]
    Cache { sequence: usize },
    #[error("layer `{layer}` is not dense: gradients are taken of a source model")]
    NotDense { layer: String },
    #[error("hidden states have {found} values, which rows of {width} do not divide")]
    Hidden { found: usize, width: usize },
    #[error("`{found}` is no device: auto, cpu, cuda or cuda:N")]
    Device { found: String },
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] trelliq_kernels::cuda::CudaError),
    #[error("this program was built without support for NVIDIA GPUs")]
    NoCuda,
    #[error("8-bit carriers are of the CPU; a GPU runs coded layers from their codes")]
    CarrierOnGpu,
    #[error("inputs and gradients of linear layers are observed on the CPU only")]
    ObservedOnGpu,
}

impl ModelError {
    /// Whether it says that there is no GPU or driver, rather than what one lacks.
    pub fn is_no_gpu(&self) -> bool {
        match self {
            Self::NoCuda => true,
            #[cfg(feature = "cuda")]
            Self::Cuda(error) => {
                use trelliq_kernels::cuda::CudaError;
                matches!(error, CudaError::NoDriver | CudaError::NoDevice { .. })
            }
            _ => false,
        }
    }
}

/// Choices made when a model is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions {
    /// Copy coded layers into the order that kernels read, one after the other: faster, and takes
    /// memory for as many bytes as the codes, a few percent more. Otherwise they stay in the mapped
    /// file, whose pages the system may drop and read again.
    pub repack: bool,
    /// Re-quantize coded layers to 8-bit affine groups: for machines where packed decoding loses.
    pub carrier: bool,
    /// How many tokens the tokenizer knows: logits of rows beyond, which exist where a vocabulary
    /// was padded, are left out. `None` for all that the config names.
    pub vocab_limit: Option<usize>,
    /// Where the model runs. Gradients and observers need the CPU.
    pub device: DeviceChoice,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { repack: true, carrier: false, vocab_limit: None, device: DeviceChoice::Cpu }
    }
}

/// Choices read at every step, so that two settings can be compared on one loaded model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuntimeOptions {
    /// Which kernels of packed layers run.
    pub kernel: KernelOptions,
}

/// New tokens of one sequence.
#[derive(Debug)]
pub struct SequenceStep<'a> {
    /// What the sequence has seen so far; the step's tokens are added to it.
    pub cache: &'a mut KvCache,
    pub tokens: &'a [u32],
}

/// For which tokens of a step logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logits {
    /// Every token of every sequence, sequence after sequence.
    All,
    /// The last token of every sequence.
    Last,
}

/// Which linear layers read an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerInput {
    /// q, k and v.
    Attention,
    /// The attention's output projection.
    AttentionOutput,
    /// Gate and up.
    FeedForward,
    /// Down.
    FeedForwardOutput,
}

/// Told the inputs of the linear layers, `[tokens, in]`, with the decoder layer's index.
pub type Observer<'a> = &'a mut dyn FnMut(usize, LayerInput, &[f32]);

/// A loaded decoder. Coded layers stay packed: no dense copy of them is ever held.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    embedding: Linear,
    layers: Vec<Layer>,
    final_norm: Vec<f32>,
    head: Option<Linear>,
    vocab: usize,
    #[cfg(feature = "cuda")]
    cuda: Option<cuda::CudaDecoder>,
    refused: Option<Box<ModelError>>,
}

/// One decoder layer.
#[derive(Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    attention: Attention,
    /// Gemma's norm of what the attention adds.
    post_attention_norm: Option<Vec<f32>>,
    feed_forward_norm: Vec<f32>,
    feed_forward: FeedForward,
    /// Gemma's norm of what the feed-forward block adds.
    post_feed_forward_norm: Option<Vec<f32>>,
}

#[derive(Debug)]
struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    output: Linear,
    /// Norms of every head, `[head_dim]`.
    q_norm: Option<Vec<f32>>,
    k_norm: Option<Vec<f32>>,
}

#[derive(Debug)]
struct FeedForward {
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// Runs `work` on a thread of the pool. A parallel region that another thread starts puts that thread
/// to sleep and wakes it again, and a step has hundreds of them.
fn on_pool<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}

/// What the layers of one step share.
struct Run<'a, 'b> {
    steps: &'a mut [SequenceStep<'b>],
    ctx: Context<'a>,
    observer: Observer<'a>,
}

impl Model {
    /// Loads every layer to where the options want it; on a CPU, dense weights stay in the mapped files
    /// where their dtype allows.
    ///
    /// Errors name the config's key or the tensor that is missing or of a wrong shape, or say what a
    /// GPU that was asked for lacks.
    pub fn load(source: &ModelSource, options: &LoadOptions) -> Result<Self, ModelError> {
        let refused = match options.device {
            DeviceChoice::Cpu => None,
            DeviceChoice::Cuda(_) => return Self::load_on_gpu(source, options),
            DeviceChoice::Auto => match Self::load_on_gpu(source, options) {
                Ok(model) => return Ok(model),
                Err(error) => Some(Box::new(error)),
            },
        };
        Ok(Self { refused, ..Self::load_on_cpu(source, options)? })
    }

    fn load_on_cpu(source: &ModelSource, options: &LoadOptions) -> Result<Self, ModelError> {
        let config = ModelConfig::from_json(source.config())?;
        let parts = load::load(source, &config, options)?;
        let vocab = options.vocab_limit.map_or(config.vocab_size, |n| n.min(config.vocab_size));
        Ok(Self {
            config,
            embedding: parts.embedding,
            layers: parts.layers,
            final_norm: parts.final_norm,
            head: parts.head,
            vocab,
            #[cfg(feature = "cuda")]
            cuda: None,
            refused: None,
        })
    }

    /// The layers are copied and let go here: only rows of the embedding are looked up on the CPU.
    #[cfg(feature = "cuda")]
    fn load_on_gpu(source: &ModelSource, options: &LoadOptions) -> Result<Self, ModelError> {
        if options.carrier {
            return Err(ModelError::CarrierOnGpu);
        }
        let device = match options.device {
            DeviceChoice::Cuda(ordinal) => cuda::open(ordinal)?,
            _ => cuda::open_for(source.tensors().map(TensorInfo::bytes).sum())?,
        };
        let in_place = LoadOptions { repack: false, ..options.clone() };
        let mut model = Self::load_on_cpu(source, &in_place)?;
        model.cuda = Some(cuda::CudaDecoder::upload(device, &model)?);
        model.layers.clear();
        model.head = None;
        source.tensors().for_each(|info| source.release(&info.name));
        Ok(model)
    }

    #[cfg(not(feature = "cuda"))]
    fn load_on_gpu(_: &ModelSource, _: &LoadOptions) -> Result<Self, ModelError> {
        Err(ModelError::NoCuda)
    }

    fn is_on_cpu(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.cuda.is_none();
        #[cfg(not(feature = "cuda"))]
        true
    }

    /// The name of the GPU that the model runs on; `None` on the CPU.
    pub fn gpu_name(&self) -> Option<&str> {
        #[cfg(feature = "cuda")]
        return self.cuda.as_ref().map(|cuda| cuda.device().name());
        #[cfg(not(feature = "cuda"))]
        None
    }

    /// Bytes of the GPU's memory that are free; `None` on the CPU, or where the driver does not say.
    pub fn gpu_free_bytes(&self) -> Option<usize> {
        #[cfg(feature = "cuda")]
        return Some(self.cuda.as_ref()?.device().memory().ok()?.0);
        #[cfg(not(feature = "cuda"))]
        None
    }

    /// 10^9 bytes a second that the GPU's memory copies, those read and those written together; `None` on
    /// the CPU.
    pub fn gpu_bandwidth(&self) -> Result<Option<f64>, ModelError> {
        #[cfg(feature = "cuda")]
        if let Some(cuda) = &self.cuda {
            return Ok(Some(cuda.device().copy_rate()?));
        }
        Ok(None)
    }

    /// Why [`DeviceChoice::Auto`] took the CPU.
    pub fn gpu_refusal(&self) -> Option<&ModelError> {
        self.refused.as_deref()
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Width of a row of logits: the config's vocabulary, or the limit that it was loaded with.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// A cache for a new sequence.
    pub fn new_cache(&self) -> KvCache {
        #[cfg(feature = "cuda")]
        if let Some(cuda) = &self.cuda {
            return cuda.new_cache(&self.config);
        }
        KvCache::new(&self.config)
    }

    /// Runs a step of one or several sequences together and returns logits, `[rows, vocab]`: the
    /// linear layers see the tokens of all sequences at once.
    ///
    /// After an error the caches are as before the step.
    pub fn forward(
        &self,
        steps: &mut [SequenceStep],
        logits: Logits,
        options: &RuntimeOptions,
    ) -> Result<Vec<f32>, ModelError> {
        #[cfg(feature = "cuda")]
        if let Some(cuda) = &self.cuda {
            let wanted = match logits {
                Logits::All => cuda::Wanted::AllLogits,
                Logits::Last => cuda::Wanted::LastLogits,
            };
            self.check(steps)?;
            return cuda.forward(self, steps, wanted, options);
        }
        on_pool(|| self.step(steps, logits, options))
    }

    fn step(
        &self,
        steps: &mut [SequenceStep],
        logits: Logits,
        options: &RuntimeOptions,
    ) -> Result<Vec<f32>, ModelError> {
        let hidden = self.forward_hidden(steps, options)?;
        let width = self.config.hidden_size;
        match logits {
            Logits::All => self.logits(&hidden, options),
            Logits::Last => {
                let mut end = 0;
                let last = steps.iter().flat_map(|step| {
                    end += step.tokens.len();
                    &hidden[(end - 1) * width..end * width]
                });
                let last: Vec<f32> = last.copied().collect();
                self.logits(&last, options)
            }
        }
    }

    /// Like [`forward`](Self::forward), but returns the normed states before the output head,
    /// `[tokens, hidden_size]`, so that a caller can take logits of a few rows at a time.
    pub fn forward_hidden(
        &self,
        steps: &mut [SequenceStep],
        options: &RuntimeOptions,
    ) -> Result<Vec<f32>, ModelError> {
        #[cfg(feature = "cuda")]
        if let Some(cuda) = &self.cuda {
            self.check(steps)?;
            return cuda.forward(self, steps, cuda::Wanted::Hidden, options);
        }
        on_pool(|| self.forward_observed(steps, options, &mut |_, _, _| {}))
    }

    /// Like [`forward_hidden`](Self::forward_hidden), and shows `observer` every input of a linear
    /// layer on the way, for statistics such as Hessians.
    pub fn forward_observed(
        &self,
        steps: &mut [SequenceStep],
        options: &RuntimeOptions,
        observer: Observer,
    ) -> Result<Vec<f32>, ModelError> {
        if !self.is_on_cpu() {
            return Err(ModelError::ObservedOnGpu);
        }
        self.check(steps)?;
        if steps.is_empty() {
            return Ok(Vec::new());
        }
        for step in steps.iter_mut() {
            step.cache.forget_unfinished();
        }
        let tokens: Vec<u32> = steps.iter().flat_map(|step| step.tokens).copied().collect();
        let mut x = self.embed(&tokens, options)?;
        let tables = self.rotary_tables(steps);
        let ctx = Context { options: &options.kernel, scratch: Scratch::default() };
        let mut run = Run { steps, ctx, observer };
        for (index, layer) in self.layers.iter().enumerate() {
            let rope = &self.config.layers[index].rope;
            let rotary = tables.iter().find(|(known, _)| known == rope).map(|(_, table)| table);
            self.attention_block(index, layer, &mut x, rotary, &mut run)?;
            self.feed_forward_block(index, layer, &mut x, &mut run)?;
        }
        for step in run.steps {
            step.cache.commit(step.tokens);
        }
        rms_norm(&mut x, &self.final_norm, self.config.rms_norm_eps);
        Ok(x)
    }

    /// Logits `[rows, vocab]` of normed states `[rows, hidden_size]`.
    pub fn logits(&self, hidden: &[f32], options: &RuntimeOptions) -> Result<Vec<f32>, ModelError> {
        let width = self.config.hidden_size;
        if !hidden.len().is_multiple_of(width) {
            return Err(ModelError::Hidden { found: hidden.len(), width });
        }
        if hidden.is_empty() {
            return Ok(Vec::new());
        }
        #[cfg(feature = "cuda")]
        if let Some(cuda) = &self.cuda {
            return cuda.logits(self, hidden, options);
        }
        let mut ctx = Context { options: &options.kernel, scratch: Scratch::default() };
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        head.forward_first(self.vocab, hidden, hidden.len() / width, &mut ctx)
            .map_err(|source| ModelError::Layer { layer: "lm_head".to_owned(), source })
    }

    fn check(&self, steps: &[SequenceStep]) -> Result<(), ModelError> {
        let vocab = self.config.vocab_size;
        for (sequence, step) in steps.iter().enumerate() {
            if step.tokens.is_empty() {
                return Err(ModelError::EmptyStep { sequence });
            }
            if !step.cache.fits(&self.config) || step.cache.is_on_cpu() != self.is_on_cpu() {
                return Err(ModelError::Cache { sequence });
            }
            if let Some(token) = step.tokens.iter().find(|token| **token as usize >= vocab) {
                return Err(ModelError::Token { token: *token, vocab });
            }
        }
        Ok(())
    }

    fn embed(&self, tokens: &[u32], options: &RuntimeOptions) -> Result<Vec<f32>, ModelError> {
        let width = self.config.hidden_size;
        let mut x = vec![0f32; tokens.len() * width];
        let numerics = options.kernel.numerics;
        x.par_chunks_mut(width)
            .zip(tokens)
            .try_for_each(|(row, token)| self.embedding.row(*token as usize, numerics, row))
            .map_err(|source| ModelError::Layer { layer: "embed_tokens".to_owned(), source })?;
        if self.config.embedding_scale != 1.0 {
            x.iter_mut().for_each(|x| *x *= self.config.embedding_scale);
        }
        Ok(x)
    }

    /// One table for each rotary embedding that the layers use.
    fn rotary_tables(&self, steps: &[SequenceStep]) -> Vec<(Rope, RotaryTable)> {
        let positions: Vec<usize> = steps
            .iter()
            .flat_map(|step| step.cache.len()..step.cache.len() + step.tokens.len())
            .collect();
        let mut tables: Vec<(Rope, RotaryTable)> = Vec::new();
        for AttentionConfig { rope, .. } in &self.config.layers {
            if tables.iter().all(|(known, _)| known != rope) {
                let table = RotaryTable::new(rope, self.config.head_dim, &positions);
                tables.push((*rope, table));
            }
        }
        tables
    }

    fn attention_block(
        &self,
        index: usize,
        layer: &Layer,
        x: &mut [f32],
        rotary: Option<&RotaryTable>,
        run: &mut Run,
    ) -> Result<(), ModelError> {
        let config = &self.config;
        let m = x.len() / config.hidden_size;
        let mut normed = x.to_vec();
        rms_norm(&mut normed, &layer.attention_norm, config.rms_norm_eps);
        (run.observer)(index, LayerInput::Attention, &normed);
        let attention = &layer.attention;
        let [mut q, mut k, v] = linear::forward_three(
            [&attention.q, &attention.k, &attention.v],
            &normed,
            m,
            &mut run.ctx,
        )
        .map_err(|source| layer_error(index, "self_attn.qkv_proj", source))?;
        for (x, norm, heads) in [
            (&mut q, &attention.q_norm, config.num_heads),
            (&mut k, &attention.k_norm, config.num_kv_heads),
        ] {
            if let Some(norm) = norm {
                rms_norm(x, norm, config.rms_norm_eps);
            }
            if let Some(rotary) = rotary {
                rotary.rotate(x, heads);
            }
        }
        self.attend(index, &mut q, &k, &v, run.steps);
        (run.observer)(index, LayerInput::AttentionOutput, &q);
        let mut added = attention
            .output
            .forward(&q, m, &mut run.ctx)
            .map_err(|source| layer_error(index, "self_attn.o_proj", source))?;
        if let Some(norm) = &layer.post_attention_norm {
            rms_norm(&mut added, norm, config.rms_norm_eps);
        }
        add(x, &added);
        Ok(())
    }

    fn heads(&self, index: usize) -> Heads {
        let config = &self.config;
        Heads {
            heads: config.num_heads,
            kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            scale: config.attention_scale,
            window: config.layers[index].window,
        }
    }

    /// Adds k and v to the caches and replaces q by the attention's result, sequence by sequence.
    fn attend(
        &self,
        index: usize,
        q: &mut [f32],
        k: &[f32],
        v: &[f32],
        steps: &mut [SequenceStep],
    ) {
        let config = &self.config;
        let heads = self.heads(index);
        let (mut q, mut k, mut v) = (q, k, v);
        let mut sequences = Vec::with_capacity(steps.len());
        for step in steps {
            let tokens = step.tokens.len();
            let (here, rest) = q.split_at_mut(tokens * config.q_width());
            let (new_keys, later_keys) = k.split_at(tokens * config.kv_width());
            let (new_values, later_values) = v.split_at(tokens * config.kv_width());
            (q, k, v) = (rest, later_keys, later_values);
            step.cache.append(index, new_keys, new_values);
            sequences.push((here, step.cache.layer(index)));
        }
        sequences.into_par_iter().for_each(|(q, cache)| attention::attend(&heads, q, cache));
    }

    fn feed_forward_block(
        &self,
        index: usize,
        layer: &Layer,
        x: &mut [f32],
        run: &mut Run,
    ) -> Result<(), ModelError> {
        let config = &self.config;
        let m = x.len() / config.hidden_size;
        let mut normed = x.to_vec();
        rms_norm(&mut normed, &layer.feed_forward_norm, config.rms_norm_eps);
        (run.observer)(index, LayerInput::FeedForward, &normed);
        let FeedForward { gate, up, down } = &layer.feed_forward;
        let inner = linear::gated(gate, up, config.activation, &normed, m, &mut run.ctx)
            .map_err(|source| layer_error(index, "mlp.gate_up_proj", source))?;
        (run.observer)(index, LayerInput::FeedForwardOutput, &inner);
        let mut added = down
            .forward(&inner, m, &mut run.ctx)
            .map_err(|source| layer_error(index, "mlp.down_proj", source))?;
        if let Some(norm) = &layer.post_feed_forward_norm {
            rms_norm(&mut added, norm, config.rms_norm_eps);
        }
        add(x, &added);
        Ok(())
    }
}

fn layer_error(index: usize, name: &str, source: KernelError) -> ModelError {
    ModelError::Layer { layer: format!("layers.{index}.{name}"), source }
}
