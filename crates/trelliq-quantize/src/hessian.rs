//! Hessians of the layers' inputs, `H = sum of x x^T` over calibration tokens, and their file.

use crate::rotate::input_group;
use crate::{Event, Progress, QuantizeError};
use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::iter::repeat_n;
use std::path::{Path, PathBuf};
use trelliq_model::{
    KvCache, LayerInput, LinearGradient, Model, ModelError, RuntimeOptions, SequenceStep,
};

/// Key of the file's metadata that holds its [`HessianInfo`].
const INFO: &str = "trelliq_hessians";

/// Hessians of all inputs of a model, by input group (`model.layers.0.self_attn.qkv` and so on), or,
/// weighted, by layer (`model.layers.0.self_attn.q_proj`).
#[derive(Debug, Clone, Default)]
pub struct Hessians {
    sums: BTreeMap<String, Sum>,
    /// By layer, `[out]`: sums of squared gradients at outputs.
    outputs: BTreeMap<String, Vec<f64>>,
    weighted: bool,
}

/// One sum in the making: `[dim, dim]`, f64.
#[derive(Debug, Clone)]
struct Sum {
    dim: usize,
    matrix: Vec<f64>,
    /// What the matrix is divided by for a mean.
    weight: f64,
    tokens: u64,
    dropped: u64,
}

/// What tells Hessians of one source apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CalibrationId {
    pub tokens_sha256: String,
    pub weighted: bool,
}

/// What is known of a file of Hessians.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HessianInfo {
    /// SHA-256 of the calibration tokens, as little-endian u32.
    pub tokens_sha256: String,
    /// Whether tokens and outputs are weighted by how much predictions depend on them.
    #[serde(default)]
    pub weighted: bool,
    /// Tokens that were seen, by input group.
    pub tokens: BTreeMap<String, u64>,
    /// Tokens left out because an input was not finite, by input group.
    pub dropped: BTreeMap<String, u64>,
}

/// A file of Hessians, mapped.
#[derive(Debug)]
pub struct HessianFile {
    path: PathBuf,
    map: Mmap,
    pub info: HessianInfo,
}

/// The input group that a decoder layer's input belongs to.
fn group(layer: usize, input: LayerInput) -> String {
    let name = match input {
        LayerInput::Attention => "self_attn.qkv",
        LayerInput::AttentionOutput => "self_attn.o_proj",
        LayerInput::FeedForward => "mlp.gate_up",
        LayerInput::FeedForwardOutput => "mlp.down_proj",
    };
    format!("model.layers.{layer}.{name}")
}

impl Sum {
    fn new(dim: usize) -> Self {
        Self { dim, matrix: vec![0.0; dim * dim], weight: 0.0, tokens: 0, dropped: 0 }
    }

    /// Adds `x^T diag(weights) x` of the finite rows of `x`, `[tokens, dim]`: products in f32, sums in
    /// f64.
    fn add(&mut self, x: &[f32], weights: impl Iterator<Item = f64>) {
        let dim = self.dim;
        let before = self.tokens;
        let mut finite = Vec::with_capacity(x.len());
        for (row, weight) in x.chunks_exact(dim).zip(weights) {
            if !weight.is_finite() || row.iter().any(|x| !x.is_finite()) {
                self.dropped += 1;
                continue;
            }
            let root = weight.sqrt() as f32;
            finite.extend(row.iter().map(|x| root * x));
            self.weight += weight;
            self.tokens += 1;
        }
        let rows = (self.tokens - before) as usize;
        let x = finite;
        let mut block = vec![0.0f32; dim * dim];
        // SAFETY: block is [dim, dim]; x is [rows, dim], read as [dim, rows] and as [rows, dim].
        unsafe {
            gemm::gemm(
                dim,
                dim,
                rows,
                block.as_mut_ptr(),
                1,
                dim as isize,
                false,
                x.as_ptr(),
                dim as isize,
                1,
                x.as_ptr(),
                1,
                dim as isize,
                0.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::Rayon(0),
            );
        }
        for (sum, product) in self.matrix.iter_mut().zip(&block) {
            *sum += f64::from(*product);
        }
    }
}

impl Hessians {
    /// Runs `model` over `windows` of tokens and sums the outer products of its layers' inputs.
    pub fn collect(
        model: &Model,
        windows: &[&[u32]],
        progress: Progress,
    ) -> Result<Self, ModelError> {
        let total = windows.iter().map(|w| w.len() as u64).sum();
        progress(Event::Stage { name: "calibrate", total });
        let mut this = Self::default();
        for window in windows {
            let mut cache: KvCache = model.new_cache();
            let mut steps = [SequenceStep { cache: &mut cache, tokens: window }];
            model.forward_observed(
                &mut steps,
                &RuntimeOptions::default(),
                &mut |layer, input, x| {
                    let dim = x.len() / window.len();
                    let sum = this.sums.entry(group(layer, input));
                    sum.or_insert_with(|| Sum::new(dim)).add(x, repeat_n(1.0, window.len()));
                },
            )?;
            progress(Event::Advance(window.len() as u64));
        }
        Ok(this)
    }

    /// Like [`collect`](Self::collect), for every layer on its own, with each token weighted by the
    /// length of the gradient of a sampled prediction at the layer's outputs; squares of these
    /// gradients, summed over tokens, weight the outputs.
    ///
    /// GuidedQuant (arXiv:2505.07004) weights tokens by the squared length, which is what the Fisher
    /// information says. A few tokens then decide, and one draw a token is a noisy estimate: the
    /// length itself is steadier, and lost no more on held-out text (docs/fidelity.md).
    ///
    /// `model` must be dense; `seed` draws the predictions.
    pub fn collect_weighted(
        model: &Model,
        windows: &[&[u32]],
        seed: u64,
        progress: Progress,
    ) -> Result<Self, ModelError> {
        let total = windows.iter().map(|w| w.len() as u64).sum();
        progress(Event::Stage { name: "calibrate", total });
        let mut this = Self { weighted: true, ..Self::default() };
        for (index, window) in windows.iter().enumerate() {
            let seed = seed.wrapping_add(index as u64);
            model.gradients(window, seed, &RuntimeOptions::default(), &mut |seen| {
                this.add_weighted(window.len(), &seen);
            })?;
            progress(Event::Advance(window.len() as u64));
        }
        Ok(this)
    }

    fn add_weighted(&mut self, tokens: usize, seen: &LinearGradient) {
        let path = format!("model.layers.{}.{}", seen.layer, seen.site.path());
        let (dim, out) = (seen.input.len() / tokens, seen.gradient.len() / tokens);
        let square = |g: &f32| f64::from(*g).powi(2);
        let weights =
            seen.gradient.chunks_exact(out).map(|row| row.iter().map(square).sum::<f64>().sqrt());
        let sum = self.sums.entry(path.clone()).or_insert_with(|| Sum::new(dim));
        sum.add(seen.input, weights);
        let outputs = self.outputs.entry(path).or_insert_with(|| vec![0.0; out]);
        for row in seen.gradient.chunks_exact(out).filter(|row| row.iter().all(|g| g.is_finite())) {
            outputs.iter_mut().zip(row).for_each(|(sum, g)| *sum += square(g));
        }
    }

    /// Writes the file that [`HessianFile::open`] reads: one f32 `[dim, dim]` tensor an input group or a
    /// layer, the (weighted) mean over its tokens, and, weighted, one `[out]` a layer for its outputs. `tokens` are those of the calibration text, recorded by their hash.
    pub fn save(&self, path: &Path, tokens: &[u32]) -> Result<(), QuantizeError> {
        let info = HessianInfo {
            weighted: self.weighted,
            tokens_sha256: tokens_sha256(tokens),
            tokens: self.sums.iter().map(|(name, sum)| (name.clone(), sum.tokens)).collect(),
            dropped: self.sums.iter().map(|(name, sum)| (name.clone(), sum.dropped)).collect(),
        };
        let means: Vec<(&String, usize, Vec<f32>)> = self
            .sums
            .iter()
            .map(|(name, sum)| {
                let weight = if sum.weight > 0.0 { sum.weight } else { 1.0 };
                (name, sum.dim, sum.matrix.iter().map(|h| (h / weight) as f32).collect())
            })
            .collect();
        let outputs: Vec<(String, Vec<f32>)> = self
            .outputs
            .iter()
            .map(|(path, sum)| (outputs_name(path), sum.iter().map(|s| *s as f32).collect()))
            .collect();
        let means =
            means.iter().map(|(name, dim, mean)| (name.as_str(), view(vec![*dim; 2], mean)));
        let outputs = outputs.iter().map(|(name, sum)| (name.as_str(), view(vec![sum.len()], sum)));
        let views = means.chain(outputs);
        let info = serde_json::to_string(&info).expect("plain data");
        let temporary = path.with_extension("tmp");
        safetensors::serialize_to_file(
            views,
            Some(HashMap::from([(INFO.into(), info)])),
            &temporary,
        )
        .map_err(|e| QuantizeError::Part { path: temporary.clone(), reason: e.to_string() })?;
        fs::rename(&temporary, path).map_err(QuantizeError::io("rename", path))
    }
}

impl HessianFile {
    pub fn open(path: &Path) -> Result<Self, QuantizeError> {
        let file = File::open(path).map_err(QuantizeError::io("open", path))?;
        // SAFETY: the file is read only and its bytes are checked as they are used; a file that
        // somebody truncates while it is mapped ends the process, as with every mapped model.
        let map = unsafe { Mmap::map(&file) }.map_err(QuantizeError::io("map", path))?;
        let damaged = |reason: String| QuantizeError::Part { path: path.to_owned(), reason };
        let (_, metadata) = SafeTensors::read_metadata(&map).map_err(|e| damaged(e.to_string()))?;
        let info = metadata.metadata().as_ref().and_then(|m| m.get(INFO));
        let info = info.ok_or_else(|| damaged("it is not a file of Hessians".into()))?;
        let info = serde_json::from_str(info).map_err(|e| damaged(e.to_string()))?;
        Ok(Self { path: path.to_owned(), map, info })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The (weighted) mean of `x x^T` for the input of the layer at `path`, `[dim, dim]`, if the file has it.
    pub fn hessian(&self, path: &str, dim: usize) -> Result<Option<Vec<f64>>, QuantizeError> {
        let name = if self.info.weighted { path.to_owned() } else { input_group(path) };
        self.tensor(&name, &[dim, dim])
    }

    pub(crate) fn id(&self) -> CalibrationId {
        let HessianInfo { tokens_sha256, weighted, .. } = &self.info;
        CalibrationId { tokens_sha256: tokens_sha256.clone(), weighted: *weighted }
    }

    /// How much predictions depend on each output of the layer at `path`, `[out]`, up to a factor;
    /// `None` where the file does not say.
    pub fn outputs(&self, path: &str, out: usize) -> Result<Option<Vec<f64>>, QuantizeError> {
        self.tensor(&outputs_name(path), &[out])
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f64>>, QuantizeError> {
        let damaged = |reason: String| QuantizeError::Part { path: self.path.clone(), reason };
        let tensors = SafeTensors::deserialize(&self.map).map_err(|e| damaged(e.to_string()))?;
        let Ok(view) = tensors.tensor(name) else { return Ok(None) };
        if view.dtype() != Dtype::F32 || view.shape() != shape {
            let found = (view.dtype(), view.shape().to_vec());
            return Err(damaged(format!("`{name}` is {found:?}, not f32 {shape:?}")));
        }
        let elements = view.data().chunks_exact(4);
        let value = |b: &[u8]| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(Some(elements.map(value).collect()))
    }
}

pub(crate) fn tokens_sha256(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn view(shape: Vec<usize>, values: &[f32]) -> TensorView<'_> {
    TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values)).expect("a whole tensor")
}

fn outputs_name(path: &str) -> String {
    format!("{path}.outputs")
}
