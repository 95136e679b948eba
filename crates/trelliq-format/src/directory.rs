//! Model directories: `config.json`, tokenizer files and safetensors, sharded or not.

use crate::FormatError;
use crate::mapped::MappedFile;
use crate::safetensors_header::{HeaderTensor, parse_safetensors_header};
use crate::source::{Parts, Stored, Transform};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Small files that belong to a model beside its config and weights.
pub(crate) const SIDECARS: [&str; 13] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

/// Opens a directory: reads its config and sidecars, maps its safetensors and checks their headers.
pub(crate) fn open(directory: &Path) -> Result<Parts, FormatError> {
    let config = read_json(&directory.join(CONFIG))?;
    let index_path = directory.join(INDEX);
    let (names, index) = if index_path.is_file() {
        let index = read_index(&index_path)?;
        let shards: BTreeSet<&String> = index.values().collect();
        (shards.into_iter().cloned().collect::<Vec<_>>(), Some(index))
    } else if directory.join(SINGLE).is_file() {
        (vec![SINGLE.to_owned()], None)
    } else {
        let reason = format!("it has neither {SINGLE} nor {INDEX}");
        return Err(FormatError::NotAModel { path: directory.to_owned(), reason });
    };
    let mut files = Vec::new();
    let mut tensors = Vec::new();
    for name in names {
        let file = MappedFile::open(&directory.join(&name))?;
        tensors.extend(self::tensors(&file, files.len())?);
        files.push(file);
    }
    if let Some(index) = index {
        check_index(directory, &index, &files, &tensors)?;
    }
    Ok(Parts { root: directory.to_owned(), config, files, tensors, sidecars: sidecars(directory)? })
}

/// The tensors of a safetensors file, which is number `file` of its model.
pub(crate) fn tensors(mapped: &MappedFile, file: usize) -> Result<Vec<Stored>, FormatError> {
    let stored = |tensor| {
        let HeaderTensor { name, dtype, shape, bytes } = tensor;
        Stored { name, dtype, shape, file, bytes, transform: Transform::None }
    };
    let header = parse_safetensors_header(&mapped.path, &mapped.map)?;
    Ok(header.into_iter().map(stored).collect())
}

pub(crate) fn read_json(path: &Path) -> Result<Value, FormatError> {
    let bytes = fs::read(path).map_err(FormatError::io("read", path))?;
    serde_json::from_slice(&bytes).map_err(FormatError::json(path))
}

/// Tensor name to shard name; a shard must be a plain file name, so that nothing outside of the
/// directory is opened.
pub(crate) fn read_index(path: &Path) -> Result<BTreeMap<String, String>, FormatError> {
    let index = read_json(path)?;
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(FormatError::header(path, "it has no object `weight_map`"));
    };
    let mut shards = BTreeMap::new();
    for (tensor, shard) in map {
        let plain = |name: &&str| {
            let mut parts = Path::new(name).components();
            matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
        };
        match shard.as_str().filter(plain) {
            Some(shard) => shards.insert(tensor.clone(), shard.to_owned()),
            None => {
                let reason = format!("its shard {shard} is not the name of a file beside it");
                return Err(FormatError::tensor(path, tensor, reason));
            }
        };
    }
    match shards.is_empty() {
        true => Err(FormatError::header(path, "its `weight_map` is empty")),
        false => Ok(shards),
    }
}

/// Every tensor of the index must be in the shard that it names, and no tensor in two shards. A
/// tensor that the index does not list is kept: other readers load it too.
fn check_index(
    directory: &Path,
    index: &BTreeMap<String, String>,
    files: &[MappedFile],
    tensors: &[Stored],
) -> Result<(), FormatError> {
    let mut found: BTreeMap<&str, &Path> = BTreeMap::new();
    for tensor in tensors.iter() {
        let file = files[tensor.file].path.as_path();
        if let Some(first) = found.insert(&tensor.name, file) {
            let (first, second) = (first.to_owned(), file.to_owned());
            let tensor = tensor.name.clone();
            return Err(FormatError::DuplicateTensor { tensor, first, second });
        }
    }
    for (tensor, shard) in index {
        let file = directory.join(shard);
        if found.get(tensor.as_str()).is_none_or(|place| *place != file) {
            return Err(FormatError::MissingTensor { tensor: tensor.clone(), file });
        }
    }
    Ok(())
}

fn sidecars(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>, FormatError> {
    let mut found = BTreeMap::new();
    for name in SIDECARS {
        let path: PathBuf = directory.join(name);
        if path.is_file() {
            let bytes = fs::read(&path).map_err(FormatError::io("read", &path))?;
            found.insert(name.to_owned(), bytes);
        }
    }
    Ok(found)
}
