//! A model's tensors by their Hugging Face names, whatever file format holds them.

use crate::elements::{self, Elements};
use crate::mapped::MappedFile;
use crate::widen::narrow;
use crate::{FormatError, QuantizationConfig, TensorType, directory, gguf};
use memmap2::Mmap;
use safetensors::Dtype;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that are handed on at once where a tensor is copied.
const WRITE_CHUNK: usize = 1 << 20;

/// What is known about a tensor without reading it.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// Its Hugging Face name, for example `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// How its elements are stored.
    pub dtype: TensorType,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The file that holds it.
    pub file: PathBuf,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.rows() * self.row_len()
    }

    /// Stored bytes.
    pub fn bytes(&self) -> usize {
        self.elements() / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// Length of the first dimension (1 for a scalar).
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Elements a row: the product of all dimensions but the first.
    pub fn row_len(&self) -> usize {
        // The dimensions of an empty tensor may overflow where their order does not show it.
        if self.shape.contains(&0) { 0 } else { self.shape.iter().skip(1).product() }
    }
}

/// The stored bytes of a tensor, without a copy.
#[derive(Debug, Clone)]
pub struct RawTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub map: Arc<Mmap>,
    /// Byte offset of the tensor in `map`.
    pub offset: usize,
    /// Length of the tensor in bytes.
    pub len: usize,
    pub file: PathBuf,
}

impl RawTensor {
    /// Little-endian elements, row-major.
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.offset..self.offset + self.len]
    }
}

/// What turns stored elements into those of the Hugging Face model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Transform {
    None,
    /// Rows of `head_dim` rows a head are stored as interleaved rotary pairs.
    Unpermute {
        head_dim: usize,
    },
    /// The stored value is the model's plus one.
    SubtractOne,
}

/// A tensor as a format's opener found it; `bytes` must lie inside of the file and match the shape.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub name: String,
    pub dtype: TensorType,
    pub shape: Vec<usize>,
    pub file: usize,
    pub bytes: Range<usize>,
    pub transform: Transform,
}

/// What a format's opener hands over.
#[derive(Debug)]
pub(crate) struct Parts {
    pub root: PathBuf,
    pub config: Value,
    pub files: Vec<MappedFile>,
    pub tensors: Vec<Stored>,
    pub sidecars: BTreeMap<String, Vec<u8>>,
}

/// An open model: its config, its sidecar files and its tensors, which stay in mapped files and
/// are read one at a time.
#[derive(Debug)]
pub struct ModelSource {
    root: PathBuf,
    config: Value,
    quantization: Option<QuantizationConfig>,
    files: Vec<MappedFile>,
    paths: Vec<PathBuf>,
    infos: Vec<TensorInfo>,
    stored: Vec<Stored>,
    index: BTreeMap<String, usize>,
    sidecars: BTreeMap<String, Vec<u8>>,
}

impl ModelSource {
    /// Opens a model by what `spec` is: a directory, a `.gguf` file, else (with the feature `hub`)
    /// a repository id `owner/name` or `owner/name@revision`.
    pub fn open(spec: &str) -> Result<Self, FormatError> {
        let path = Path::new(spec);
        if path.exists() {
            return Self::open_path(path);
        }
        #[cfg(feature = "hub")]
        if crate::hub::RepositoryId::parse(spec).is_some() {
            return Self::open_hub(spec, &crate::HubOptions::default());
        }
        let reason = "there is no such path, and it is not a repository id like owner/name".into();
        Err(FormatError::NotAModel { path: path.to_owned(), reason })
    }

    /// Opens a directory of safetensors or a GGUF file.
    pub fn open_path(path: &Path) -> Result<Self, FormatError> {
        let parts = if path.is_dir() { directory::open(path)? } else { gguf::open(path)? };
        Self::from_parts(parts)
    }

    /// Downloads a model from a hub, or finds it in the hub's cache, and opens it.
    #[cfg(feature = "hub")]
    pub fn open_hub(id: &str, options: &crate::HubOptions) -> Result<Self, FormatError> {
        Self::open_path(&crate::hub::download(id, options)?)
    }

    /// A model from the bytes of one safetensors file and its config, without any file: for models
    /// made in memory and for tests. The bytes are copied once.
    pub fn from_safetensors_bytes(config: Value, bytes: &[u8]) -> Result<Self, FormatError> {
        let root = PathBuf::from("(memory)");
        let file = MappedFile::in_memory(&root.join(directory::SINGLE), bytes)?;
        let tensors = directory::tensors(&file, 0)?;
        let sidecars = BTreeMap::new();
        Self::from_parts(Parts { root, config, files: vec![file], tensors, sidecars })
    }

    /// A model from the bytes of a GGUF file, which are copied once.
    pub fn from_gguf_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let name = Path::new("(memory).gguf");
        Self::from_parts(gguf::parts(MappedFile::in_memory(name, bytes)?)?)
    }

    fn from_parts(parts: Parts) -> Result<Self, FormatError> {
        let Parts { root, config, files, tensors: stored, sidecars } = parts;
        let paths: Vec<PathBuf> = files.iter().map(|file| file.path.to_path_buf()).collect();
        let mut index = BTreeMap::new();
        for (at, tensor) in stored.iter().enumerate() {
            if let Some(first) = index.insert(tensor.name.clone(), at) {
                let (first, second) = (&paths[stored[first].file], &paths[tensor.file]);
                let (first, second) = (first.clone(), second.clone());
                let tensor = tensor.name.clone();
                return Err(FormatError::DuplicateTensor { tensor, first, second });
            }
        }
        let info = |tensor: &Stored| TensorInfo {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            file: paths[tensor.file].clone(),
        };
        let infos = stored.iter().map(info).collect();
        let quantization = QuantizationConfig::from_model_config(&config).map_err(|source| {
            FormatError::Quantization { file: root.join(directory::CONFIG), source }
        })?;
        Ok(Self { root, config, quantization, files, paths, infos, stored, index, sidecars })
    }

    /// The path that was opened; a repository's snapshot directory for a hub id.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The Hugging Face `config.json`, synthesised from the metadata of a GGUF file.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// How the model's layers are coded; `None` when `config.json` has no `quantization`.
    pub fn quantization(&self) -> Option<&QuantizationConfig> {
        self.quantization.as_ref()
    }

    /// All tensors in the order of their files and of the data inside of them.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.infos.iter()
    }

    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.infos[at])
    }

    /// The tensors at `path.` one level down, by name: the parts of a layer.
    pub fn tensors_under(&self, path: &str) -> impl Iterator<Item = &TensorInfo> {
        let prefix = format!("{path}.");
        let from = self.index.range(prefix.clone()..);
        from.map(|(name, &at)| (name, at))
            .take_while(move |(name, _)| name.starts_with(&prefix))
            .filter(move |(name, _)| !name[path.len() + 1..].contains('.'))
            .map(|(_, at)| &self.infos[at])
    }

    /// Like [`info`](Self::info), but a tensor that is missing is an error.
    pub fn require(&self, name: &str) -> Result<&TensorInfo, FormatError> {
        self.find(name).map(|at| &self.infos[at])
    }

    /// A whole tensor as f32: dequantized or widened.
    ///
    /// Errors when there is no such tensor or its elements are not floats.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, FormatError> {
        let info = self.require(name)?;
        let (rows, mut out) = (0..info.rows(), vec![0.0; info.elements()]);
        self.read_rows_f32(name, rows, &mut out)?;
        Ok(out)
    }

    /// Rows of a tensor (slices of its first dimension) as f32, into `out` of exactly
    /// `rows.len() * row_len` elements; memory and time go with the rows, not the tensor.
    pub fn read_rows_f32(
        &self,
        name: &str,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), FormatError> {
        let at = self.find(name)?;
        let info = &self.infos[at];
        if rows.start > rows.end || rows.end > info.rows() {
            let (start, end, rows) = (rows.start, rows.end, info.rows());
            let (file, tensor) = (info.file.clone(), name.to_owned());
            return Err(FormatError::Rows { file, tensor, start, end, rows });
        }
        let expected = rows.len() * info.row_len();
        if out.len() != expected {
            let (tensor, found) = (name.to_owned(), out.len());
            return Err(FormatError::Buffer { tensor, found, expected });
        }
        self.elements(at).read_rows(rows, out)
    }

    /// The stored bytes of a tensor as they are, in place.
    ///
    /// Errors when the tensor is stored in blocks or is not the model's own tensor as stored (rows
    /// permuted, an offset folded in), which [`dense_bytes`](Self::dense_bytes) undoes.
    pub fn raw(&self, name: &str) -> Result<RawTensor, FormatError> {
        let stored = &self.stored[self.find(name)?];
        match (stored.dtype, stored.transform) {
            (TensorType::Plain(dtype), Transform::None) => Ok(RawTensor {
                dtype,
                shape: stored.shape.clone(),
                map: self.files[stored.file].map.clone(),
                offset: stored.bytes.start,
                len: stored.bytes.len(),
                file: self.paths[stored.file].clone(),
            }),
            (dtype, _) => Err(FormatError::Dtype {
                file: self.paths[stored.file].clone(),
                tensor: name.to_owned(),
                found: format!("{dtype} in GGUF's arrangement"),
                expected: "elements that need no conversion",
            }),
        }
    }

    /// The dtype of a safetensors copy of the tensor. Plain elements keep theirs; blocks become f16
    /// where every finite value is finite in f16, else bf16, else f32, so that they are read once.
    pub fn dense_dtype(&self, name: &str) -> Result<Dtype, FormatError> {
        let at = self.find(name)?;
        match self.stored[at].dtype {
            TensorType::Plain(dtype) => Ok(dtype),
            TensorType::Block(_) => elements::narrowest(&self.elements(at)),
        }
    }

    /// What a safetensors copy of the tensor holds: [`dense_dtype`](Self::dense_dtype) and the
    /// little-endian bytes, which are the source's own where the dtype is.
    pub fn dense_bytes(&self, name: &str) -> Result<(Dtype, Cow<'_, [u8]>), FormatError> {
        let dtype = self.dense_dtype(name)?;
        if let Some(bytes) = self.plain_bytes(self.find(name)?) {
            return Ok((dtype, Cow::Borrowed(bytes)));
        }
        let mut bytes = Vec::with_capacity(self.require(name)?.elements() * dtype.bitsize() / 8);
        self.write_dense(name, dtype, &mut |chunk| {
            bytes.extend_from_slice(chunk);
            Ok::<(), FormatError>(())
        })?;
        Ok((dtype, Cow::Owned(bytes)))
    }

    /// Passes the bytes of [`dense_bytes`](Self::dense_bytes) to `write` in pieces of bounded size;
    /// `dtype` is [`dense_dtype`](Self::dense_dtype).
    pub fn write_dense<E: From<FormatError>>(
        &self,
        name: &str,
        dtype: Dtype,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let at = self.find(name)?;
        if let Some(bytes) = self.plain_bytes(at) {
            return bytes.chunks(WRITE_CHUNK).try_for_each(write);
        }
        let mut bytes = Vec::new();
        elements::for_each_chunk(&self.elements(at), |values| {
            bytes.clear();
            narrow(dtype, values, &mut bytes);
            write(&bytes)
        })
    }

    /// Lets the system drop a tensor's pages from memory once it has been read, so that streaming
    /// through a model keeps resident memory bounded. Reading the tensor again is still possible.
    pub fn release(&self, name: &str) {
        if let Some(&at) = self.index.get(name) {
            let stored = &self.stored[at];
            self.files[stored.file].release(stored.bytes.clone());
        }
    }

    /// Tokenizer, chat template and other small files by name; synthesised for a GGUF file.
    pub fn sidecar_files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.sidecars
    }

    /// The files that hold the tensors.
    pub fn source_files(&self) -> &[PathBuf] {
        &self.paths
    }

    /// SHA-256 of each of [`source_files`](Self::source_files), in lowercase hex. Reads every file
    /// once, in bounded memory; `progress` is told the bytes of each step.
    pub fn sha256(&self, progress: &mut dyn FnMut(u64)) -> Result<Vec<String>, FormatError> {
        self.paths.iter().map(|path| sha256_file(path, progress)).collect()
    }

    fn find(&self, name: &str) -> Result<usize, FormatError> {
        self.index.get(name).copied().ok_or_else(|| FormatError::MissingTensor {
            tensor: name.to_owned(),
            file: self.root.clone(),
        })
    }

    /// The stored bytes, where they are those of the model.
    fn plain_bytes(&self, at: usize) -> Option<&[u8]> {
        let stored = &self.stored[at];
        let plain = matches!(stored.dtype, TensorType::Plain(_));
        let bytes = || &self.files[stored.file].map[stored.bytes.clone()];
        (plain && stored.transform == Transform::None).then(bytes)
    }

    fn elements(&self, at: usize) -> Elements<'_> {
        let stored = &self.stored[at];
        let bytes = &self.files[stored.file].map[stored.bytes.clone()];
        Elements { info: &self.infos[at], bytes, transform: stored.transform }
    }
}

fn sha256_file(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<String, FormatError> {
    let mut file = File::open(path).map_err(FormatError::io("open", path))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).map_err(FormatError::io("read", path))?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        progress(read as u64);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
