//! Written directories: the bytes of the safetensors crate, whole or not there at all.

mod common;

use common::{Gguf, Tensor, f16s, f32s, safetensors, u32s};
use safetensors::tensor::{TensorView, serialize};
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use trelliq_format::{FormatError, ModelSource, ModelWriter, WriterOptions, Written};

fn tensors() -> Vec<Tensor<'static>> {
    vec![
        ("model.b.weight", Dtype::U32, &[2, 3], u32s(&[1, 2, 3, 4, 5, 6])),
        ("model.a.scales", Dtype::F16, &[3], f16s(&[1.0, 2.0, 3.0])),
        ("model.c.weight", Dtype::F32, &[2], f32s(&[0.5, -0.5])),
        ("model.a.weight", Dtype::U8, &[5], vec![1, 2, 3, 4, 5]),
        ("model.d.weight", Dtype::BF16, &[1, 2], common::bf16s(&[7.0, 8.0])),
    ]
}

fn output() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    (directory, path)
}

fn options(max_shard_bytes: u64) -> WriterOptions {
    WriterOptions { max_shard_bytes, ..WriterOptions::default() }
}

fn write(
    path: &Path,
    tensors: Vec<Tensor>,
    options: WriterOptions,
) -> Result<Written, FormatError> {
    let mut writer: ModelWriter = ModelWriter::new(path, options)?;
    for (name, dtype, shape, bytes) in tensors {
        writer.add_bytes(name, dtype, shape, bytes)?;
    }
    writer.add_file("config.json", b"{}".to_vec())?;
    let mut told = 0;
    let written = writer.finish(&mut |bytes| told += bytes)?;
    assert_eq!(told, written.tensor_bytes);
    Ok(written)
}

fn entries(directory: &Path) -> Vec<String> {
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| name(entry.unwrap())).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_what_the_safetensors_crate_writes() {
    let (parent, path) = output();
    let written = write(&path, tensors(), options(u64::MAX)).unwrap();
    assert_eq!(written.shards, ["model.safetensors"]);
    assert_eq!(written.tensor_bytes, 24 + 6 + 8 + 5 + 4);
    assert_eq!(entries(&path), ["config.json", "model.safetensors"]);
    assert_eq!(entries(parent.path()), ["model"]);
    let all = tensors();
    let view = all.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap())
    });
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let expected = serialize(view, Some(metadata)).unwrap();
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), expected);
}

#[test]
fn the_order_of_adding_changes_nothing() {
    let mut files = Vec::new();
    for turn in 0..5 {
        let (_parent, path) = output();
        let mut tensors = tensors();
        tensors.rotate_left(turn);
        write(&path, tensors, options(16)).unwrap();
        let read = |name: &String| fs::read(path.join(name)).unwrap();
        let names = entries(&path);
        files.push((names.iter().map(read).collect::<Vec<_>>(), names));
    }
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn shards_hold_what_the_option_allows() {
    let (_parent, path) = output();
    let written = write(&path, tensors(), options(12)).unwrap();
    // By name: a.scales 6 + a.weight 5 fit into 12; b 24 is alone; c 8 + d 4 fit.
    let shards: Vec<String> =
        (1..=3).map(|n| format!("model-0000{n}-of-00003.safetensors")).collect();
    assert_eq!(written.shards, shards);
    let index = fs::read_to_string(path.join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], 47);
    let shard = |tensor: &str| index["weight_map"][tensor].as_str().unwrap().to_owned();
    assert_eq!(shard("model.a.scales"), shards[0]);
    assert_eq!(shard("model.a.weight"), shards[0]);
    assert_eq!(shard("model.b.weight"), shards[1]);
    assert_eq!(shard("model.c.weight"), shards[2]);
    assert_eq!(shard("model.d.weight"), shards[2]);
    let source = ModelSource::open_path(&path).unwrap();
    for (name, dtype, shape, bytes) in tensors() {
        let raw = source.raw(name).unwrap();
        assert_eq!((raw.dtype, &raw.shape[..], raw.bytes()), (dtype, shape, &bytes[..]), "{name}");
        let file = fs::read(path.join(shard(name))).unwrap();
        let file = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(file.tensor(name).unwrap().data(), bytes);
        assert!(raw.offset.is_multiple_of(dtype.bitsize() / 8), "{name} at {}", raw.offset);
    }
}

#[test]
fn tensors_of_a_gguf_file_are_copied_dequantized() {
    // Blocks of Q8_0: a scale in f16 and 32 integers. The second tensor needs more than f16 holds.
    let block = |scale: f32| {
        let mut bytes = f16s(&[scale]);
        bytes.extend((0..32).map(|i| (4 * i - 64i32) as i8 as u8));
        bytes
    };
    let values =
        |scale: f32| (0..32).map(move |i| (4 * i - 64) as f32 * scale).collect::<Vec<f32>>();
    let gguf: Gguf = common::with_embedding(common::tiny("llama"), 3)
        .tensor("output.weight", &[1, 32], 8, block(0.5))
        .tensor("blk.0.attn_v.weight", &[1, 32], 8, block(2048.0));
    let source = ModelSource::from_gguf_bytes(&gguf.build()).unwrap();
    let (_parent, path) = output();
    let mut writer: ModelWriter = ModelWriter::new(&path, WriterOptions::default()).unwrap();
    for info in source.tensors() {
        writer.copy_tensor(&source, &info.name).unwrap();
    }
    writer.add_file("config.json", source.config().to_string().into_bytes()).unwrap();
    writer.finish(&mut |_| {}).unwrap();
    let copy = ModelSource::open_path(&path).unwrap();
    let head = copy.raw("lm_head.weight").unwrap();
    assert_eq!((head.dtype, head.bytes()), (Dtype::F16, &f16s(&values(0.5))[..]));
    let wide = copy.raw("model.layers.0.self_attn.v_proj.weight").unwrap();
    assert_eq!((wide.dtype, wide.bytes()), (Dtype::BF16, &common::bf16s(&values(2048.0))[..]));
    let (dtype, bytes) = source.dense_bytes("lm_head.weight").unwrap();
    assert_eq!((dtype, &bytes[..]), (Dtype::F16, head.bytes()));
    assert_eq!(copy.raw("model.embed_tokens.weight").unwrap().dtype, Dtype::F32);
}

#[test]
fn a_tensor_of_another_size_than_it_said_is_refused() {
    for (supplied, what) in [(7, "1 bytes fewer"), (9, "bytes more")] {
        let (parent, path) = output();
        let mut writer: ModelWriter = ModelWriter::new(&path, WriterOptions::default()).unwrap();
        writer.add_bytes("w", Dtype::F32, &[2], vec![0u8; supplied]).unwrap();
        let error = writer.finish(&mut |_| {}).unwrap_err();
        assert!(matches!(&error, FormatError::Supplied { tensor, .. } if tensor == "w"));
        assert!(error.to_string().contains(what), "{error}");
        assert!(entries(parent.path()).is_empty(), "something is left behind");
    }
}

#[test]
fn a_supplier_that_fails_leaves_nothing_behind() {
    #[derive(Debug)]
    struct Failure(Option<FormatError>);
    impl From<FormatError> for Failure {
        fn from(error: FormatError) -> Self {
            Failure(Some(error))
        }
    }
    let (parent, path) = output();
    let mut writer = ModelWriter::new(&path, options(4)).unwrap();
    writer.add_bytes("a", Dtype::F32, &[1], f32s(&[1.0])).unwrap();
    let fails = |sink: &mut trelliq_format::TensorSink<'_>| {
        sink.write(&[0; 2])?;
        Err(Failure(None))
    };
    writer.add_tensor("b", Dtype::F32, &[1], fails).unwrap();
    assert!(entries(parent.path()).iter().all(|name| name.starts_with('.')));
    assert!(matches!(writer.finish(&mut |_| {}), Err(Failure(None))));
    assert!(entries(parent.path()).is_empty());
    drop(ModelWriter::<FormatError>::new(&path, WriterOptions::default()).unwrap());
    assert!(entries(parent.path()).is_empty());
}

#[test]
fn an_output_error_names_the_file_and_leaves_nothing_behind() {
    let (parent, path) = output();
    let mut writer: ModelWriter = ModelWriter::new(&path, WriterOptions::default()).unwrap();
    writer.add_file(&"n".repeat(300), vec![1]).unwrap();
    let error = writer.finish(&mut |_| {}).unwrap_err();
    let FormatError::Io { action: "write", path: named, .. } = &error else { panic!("{error}") };
    assert!(named.to_str().unwrap().contains("nnnn"));
    assert!(entries(parent.path()).is_empty());
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let error = ModelWriter::<FormatError>::new(&file.join("model"), WriterOptions::default());
    assert!(matches!(error.err(), Some(FormatError::Io { .. })));
}

#[test]
fn what_is_there_is_kept_unless_told_otherwise() {
    let (parent, path) = output();
    fs::create_dir(&path).unwrap();
    write(&path, tensors(), options(u64::MAX)).unwrap();
    let before = entries(&path);
    let again = write(&path, tensors(), options(u64::MAX)).unwrap_err();
    assert!(matches!(&again, FormatError::OutputExists { path: named } if *named == path));
    assert_eq!(entries(&path), before);
    let overwrite = WriterOptions { max_shard_bytes: 12, overwrite: true };
    write(&path, tensors(), overwrite).unwrap();
    assert_eq!(entries(&path).len(), 5);
    assert_eq!(entries(parent.path()), ["model"]);
    // A target that appears while the model is written is not replaced either.
    let (_parent, late) = output();
    let mut writer: ModelWriter = ModelWriter::new(&late, WriterOptions::default()).unwrap();
    writer.add_bytes("w", Dtype::F32, &[1], f32s(&[1.0])).unwrap();
    fs::create_dir(&late).unwrap();
    fs::write(late.join("mine"), "").unwrap();
    let error = writer.finish(&mut |_| {}).unwrap_err();
    assert!(matches!(error, FormatError::OutputExists { .. }));
    assert_eq!(entries(&late), ["mine"]);
}

#[test]
fn what_a_killed_process_left_is_cleared_and_a_living_one_is_not() {
    let (parent, path) = output();
    let staging = parent.path().join(".model.writing");
    fs::create_dir_all(staging.join("deep")).unwrap();
    fs::write(staging.join("model-00001-of-00009.safetensors"), "half a shard").unwrap();
    let first: ModelWriter = ModelWriter::new(&path, WriterOptions::default()).unwrap();
    assert!(entries(&staging).is_empty());
    let second = ModelWriter::<FormatError>::new(&path, WriterOptions::default()).err().unwrap();
    assert!(matches!(&second, FormatError::Io { action: "lock", .. }), "{second}");
    assert!(staging.exists(), "the second writer must not remove what the first one writes");
    drop(first);
    assert!(entries(parent.path()).is_empty());
}

#[test]
fn names_that_cannot_be_are_refused() {
    let (_parent, path) = output();
    let mut writer: ModelWriter = ModelWriter::new(&path, WriterOptions::default()).unwrap();
    writer.add_file("a.json", vec![]).unwrap();
    for name in ["a.json", "../a", "b/c", "", "..", "x.safetensors", "model.safetensors.index.json"]
    {
        assert!(writer.add_file(name, vec![]).is_err(), "{name}");
    }
    writer.add_bytes("w", Dtype::F32, &[1], vec![0; 4]).unwrap();
    assert!(writer.add_bytes("w", Dtype::F32, &[1], vec![0; 4]).is_err());
    assert!(writer.add_bytes("v", Dtype::F32, &[usize::MAX, 2], vec![]).is_err());
    assert!(writer.add_bytes("u", Dtype::F4, &[3], vec![]).is_err());
}

#[test]
fn a_model_without_tensors_is_still_a_model() {
    let (_parent, path) = output();
    let written = write(&path, vec![], WriterOptions::default()).unwrap();
    assert_eq!(written.tensor_bytes, 0);
    assert_eq!(ModelSource::open_path(&path).unwrap().tensors().len(), 0);
    assert_eq!(safetensors(&[]).len(), 16);
}
