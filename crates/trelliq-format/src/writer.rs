//! Writes model directories: safetensors, sharded where they are large, and the files beside them.
//!
//! Equal tensors give equal bytes, in whatever order they were added. Tensor data is streamed, so a
//! shard is never held in memory. The safetensors crate makes the header; it cannot stream data
//! whose supply may fail, so the data after the header is written here.

use crate::directory::{INDEX, SINGLE};
use crate::staging::Staging;
use crate::{FormatError, ModelSource};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo as Entry};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const BUFFER: usize = 1 << 20;

/// How a model directory is written.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// Tensor bytes that a file holds at most, unless a single tensor is larger. Default: 5 GB.
    pub max_shard_bytes: u64,
    /// Replace a directory that exists and is not empty.
    pub overwrite: bool,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { max_shard_bytes: 5_000_000_000, overwrite: false }
    }
}

/// Takes the bytes of one tensor.
pub struct TensorSink<'a> {
    file: &'a mut BufWriter<File>,
    path: &'a Path,
    tensor: &'a str,
    left: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl TensorSink<'_> {
    /// Appends little-endian elements. Errors when the file cannot be written or the tensor's shape
    /// has no room for them.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        let len = bytes.len() as u64;
        self.left = self.left.checked_sub(len).ok_or_else(|| {
            self.error(format!("{len} bytes more were supplied, its shape holds {}", self.left))
        })?;
        self.file.write_all(bytes).map_err(FormatError::io("write", self.path))?;
        (self.progress)(len);
        Ok(())
    }

    fn error(&self, reason: String) -> FormatError {
        let (file, tensor) = (self.path.to_owned(), self.tensor.to_owned());
        FormatError::Supplied { file, tensor, reason }
    }

    fn finish(self) -> Result<(), FormatError> {
        match self.left {
            0 => Ok(()),
            left => Err(self.error(format!("{left} bytes fewer were supplied than it holds"))),
        }
    }
}

/// Supplies a tensor's bytes when its turn comes.
type Supply<'a, E> = Box<dyn FnOnce(&mut TensorSink<'_>) -> Result<(), E> + 'a>;

struct Pending<'a, E> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: u64,
    supply: Supply<'a, E>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// The model directory.
    pub directory: PathBuf,
    /// Names of the files that hold the tensors.
    pub shards: Vec<String>,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
}

/// A model directory that is being put together. It gets its name when it is complete; dropped
/// before, or after an error, it leaves nothing behind.
///
/// `E` is the error of the tensors' suppliers.
pub struct ModelWriter<'a, E = FormatError> {
    staging: Staging,
    options: WriterOptions,
    files: BTreeMap<String, Vec<u8>>,
    tensors: BTreeMap<String, Pending<'a, E>>,
}

impl<'a, E: From<FormatError>> ModelWriter<'a, E> {
    /// Errors when `directory` exists and is not empty, unless `options.overwrite`.
    pub fn new(directory: &Path, options: WriterOptions) -> Result<Self, FormatError> {
        let staging = Staging::new(directory, options.overwrite)?;
        Ok(Self { staging, options, files: BTreeMap::new(), tensors: BTreeMap::new() })
    }

    /// Adds `config.json`, a tokenizer file or another small file.
    pub fn add_file(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), FormatError> {
        let plain = Path::new(name).file_name().is_some_and(|file| file == name);
        let reserved = name == INDEX || name.ends_with(".safetensors");
        if !plain || reserved || self.files.contains_key(name) {
            let path = self.staging.path.join(name);
            return Err(FormatError::OutputExists { path });
        }
        self.files.insert(name.to_owned(), bytes);
        Ok(())
    }

    /// Adds a tensor; `supply` is called from [`finish`](Self::finish) and gives exactly the bytes
    /// that `dtype` and `shape` hold.
    pub fn add_tensor(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        supply: impl FnOnce(&mut TensorSink<'_>) -> Result<(), E> + 'a,
    ) -> Result<(), FormatError> {
        let error = |reason: &str| FormatError::Supplied {
            file: self.staging.path.clone(),
            tensor: name.to_owned(),
            reason: reason.to_owned(),
        };
        let elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let bits = elements.and_then(|n| n.checked_mul(dtype.bitsize()));
        let bits = bits.filter(|bits| bits % 8 == 0);
        let bytes = bits.ok_or_else(|| error("its shape is no whole number of bytes"))? as u64 / 8;
        if self.tensors.contains_key(name) {
            return Err(error("it was added before"));
        }
        let (key, name, shape) = (name.to_owned(), name.to_owned(), shape.to_vec());
        let pending = Pending { name, dtype, shape, bytes, supply: Box::new(supply) };
        self.tensors.insert(key, pending);
        Ok(())
    }

    /// Adds a tensor that is at hand.
    pub fn add_bytes(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        bytes: impl AsRef<[u8]> + 'a,
    ) -> Result<(), FormatError> {
        self.add_tensor(name, dtype, shape, move |sink| Ok(sink.write(bytes.as_ref())?))
    }

    /// Adds a tensor of another model as it is ([`ModelSource::dense_bytes`]), under its own name.
    pub fn copy_tensor(&mut self, source: &'a ModelSource, name: &str) -> Result<(), FormatError> {
        let (dtype, shape) = (source.dense_dtype(name)?, source.require(name)?.shape.clone());
        let tensor = name.to_owned();
        self.add_tensor(name, dtype, &shape, move |sink| {
            source.write_dense(&tensor, dtype, &mut |bytes| sink.write(bytes).map_err(E::from))?;
            source.release(&tensor);
            Ok(())
        })
    }

    /// Tensor bytes that [`finish`](Self::finish) will write.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes).sum()
    }

    /// Writes everything, makes it durable and gives the directory its name. `progress` is told the
    /// bytes of each step; they add up to [`tensor_bytes`](Self::tensor_bytes).
    pub fn finish(self, progress: &mut dyn FnMut(u64)) -> Result<Written, E> {
        let tensor_bytes = self.tensor_bytes();
        let Self { staging, options, files, tensors } = self;
        let shards = split(tensors.into_values(), options.max_shard_bytes);
        let count = shards.len();
        let mut weight_map = BTreeMap::new();
        let mut names = Vec::new();
        for (at, shard) in shards.into_iter().enumerate() {
            let name = shard_name(at, count);
            weight_map.extend(shard.iter().map(|tensor| (tensor.name.clone(), name.clone())));
            write_shard(&staging.path.join(&name), shard, progress)?;
            names.push(name);
        }
        if count > 1 {
            let metadata = json!({ "total_size": tensor_bytes });
            let index = json!({ "metadata": metadata, "weight_map": weight_map });
            write_file(&staging.path.join(INDEX), format!("{index:#}\n").as_bytes())?;
        }
        for (name, bytes) in &files {
            write_file(&staging.path.join(name), bytes)?;
        }
        let directory = staging.publish()?;
        Ok(Written { directory, shards: names, tensor_bytes })
    }
}

/// Fills shards in the order of the tensors; there is always at least one.
fn split<'a, E>(
    tensors: impl Iterator<Item = Pending<'a, E>>,
    max_bytes: u64,
) -> Vec<Vec<Pending<'a, E>>> {
    let mut shards = vec![Vec::new()];
    let mut filled = 0u64;
    for tensor in tensors {
        filled = filled.saturating_add(tensor.bytes);
        match shards.last_mut() {
            Some(shard) if shard.is_empty() || filled <= max_bytes => shard.push(tensor),
            _ => {
                filled = tensor.bytes;
                shards.push(vec![tensor]);
            }
        }
    }
    shards
}

fn shard_name(at: usize, count: usize) -> String {
    match count {
        1 => SINGLE.to_owned(),
        count => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
    }
}

fn write_shard<E: From<FormatError>>(
    path: &Path,
    mut tensors: Vec<Pending<'_, E>>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), E> {
    // The crate's own order: by falling alignment, so that all data is aligned, then by name.
    tensors.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
    let header = header(&tensors).map_err(|reason| FormatError::header(path, reason))?;
    let file = File::create(path).map_err(FormatError::io("create", path))?;
    let mut file = BufWriter::with_capacity(BUFFER, file);
    file.write_all(&header).map_err(FormatError::io("write", path))?;
    for Pending { name, bytes, supply, .. } in tensors {
        let (file, tensor, left) = (&mut file, name.as_str(), bytes);
        let mut sink = TensorSink { file, path, tensor, left, progress: &mut *progress };
        supply(&mut sink)?;
        sink.finish()?;
    }
    let file = file.into_inner().map_err(|error| error.into_error());
    let file = file.map_err(FormatError::io("write", path))?;
    Ok(file.sync_all().map_err(FormatError::io("sync", path))?)
}

/// The length of the JSON, then the JSON, padded so that data starts at a multiple of 8.
fn header<E>(tensors: &[Pending<'_, E>]) -> Result<Vec<u8>, String> {
    let mut end = 0;
    let mut entries = Vec::new();
    for tensor in tensors {
        let start = end;
        end += tensor.bytes as usize;
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        entries.push((tensor.name.clone(), Entry { dtype, shape, data_offsets: (start, end) }));
    }
    // The key that transformers looks for.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), entries).map_err(|e| e.to_string())?;
    let mut json = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend(json);
    Ok(header)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), FormatError> {
    fs::write(path, bytes).map_err(FormatError::io("write", path))?;
    let file = File::open(path).map_err(FormatError::io("open", path))?;
    file.sync_all().map_err(FormatError::io("sync", path))
}
