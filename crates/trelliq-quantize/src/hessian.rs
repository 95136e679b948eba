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
use std::path::{Path, PathBuf};
use trelliq_model::{KvCache, LayerInput, Model, ModelError, RuntimeOptions, SequenceStep};

/// Key of the file's metadata that holds its [`HessianInfo`].
const INFO: &str = "trelliq_hessians";

/// Hessians of all inputs of a model, by input group: `model.layers.0.self_attn.qkv` and so on.
#[derive(Debug, Clone, Default)]
pub struct Hessians {
    groups: BTreeMap<String, Sum>,
}

/// One sum in the making: `[dim, dim]`, f64.
#[derive(Debug, Clone)]
struct Sum {
    dim: usize,
    matrix: Vec<f64>,
    tokens: u64,
    dropped: u64,
}

/// What is known of a file of Hessians.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HessianInfo {
    /// SHA-256 of the calibration tokens, as little-endian u32.
    pub tokens_sha256: String,
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
        Self { dim, matrix: vec![0.0; dim * dim], tokens: 0, dropped: 0 }
    }

    /// Adds `x^T x` of the finite rows of `x`, `[tokens, dim]`: products in f32, sums in f64.
    fn add(&mut self, x: &[f32]) {
        let dim = self.dim;
        let finite: Vec<&[f32]> =
            x.chunks_exact(dim).filter(|row| row.iter().all(|x| x.is_finite())).collect();
        let rows = finite.len();
        self.tokens += rows as u64;
        self.dropped += (x.len() / dim - rows) as u64;
        let x = finite.concat();
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
                    this.groups.entry(group(layer, input)).or_insert_with(|| Sum::new(dim)).add(x);
                },
            )?;
            progress(Event::Advance(window.len() as u64));
        }
        Ok(this)
    }

    /// Writes the file that [`HessianFile::open`] reads: one f32 `[dim, dim]` tensor a group, the
    /// mean over its tokens. `tokens` are those of the calibration text, recorded by their hash.
    pub fn save(&self, path: &Path, tokens: &[u32]) -> Result<(), QuantizeError> {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let digest = Sha256::digest(bytes);
        let info = HessianInfo {
            tokens_sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            tokens: self.groups.iter().map(|(name, sum)| (name.clone(), sum.tokens)).collect(),
            dropped: self.groups.iter().map(|(name, sum)| (name.clone(), sum.dropped)).collect(),
        };
        let means: Vec<(&String, usize, Vec<f32>)> = self
            .groups
            .iter()
            .map(|(name, sum)| {
                let tokens = sum.tokens.max(1) as f64;
                (name, sum.dim, sum.matrix.iter().map(|h| (h / tokens) as f32).collect())
            })
            .collect();
        let views = means.iter().map(|(name, dim, mean)| {
            let view = TensorView::new(Dtype::F32, vec![*dim, *dim], bytemuck::cast_slice(mean));
            (name.as_str(), view.expect("a whole matrix"))
        });
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

    /// The mean of `x x^T` for the input of the layer at `path`, `[dim, dim]`, if the file has it.
    pub fn hessian(&self, path: &str, dim: usize) -> Result<Option<Vec<f64>>, QuantizeError> {
        let name = input_group(path);
        let damaged = |reason: String| QuantizeError::Part { path: self.path.clone(), reason };
        let tensors = SafeTensors::deserialize(&self.map).map_err(|e| damaged(e.to_string()))?;
        let Ok(view) = tensors.tensor(&name) else { return Ok(None) };
        if view.dtype() != Dtype::F32 || view.shape() != [dim, dim] {
            let found = (view.dtype(), view.shape().to_vec());
            return Err(damaged(format!("`{name}` is {found:?}, not f32 [{dim}, {dim}]")));
        }
        let elements = view.data().chunks_exact(4);
        let value = |b: &[u8]| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(Some(elements.map(value).collect()))
    }
}
