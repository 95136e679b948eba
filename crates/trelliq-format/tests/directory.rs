//! Directories of safetensors: what is read from them and what is refused.

mod common;

use common::{bf16s, f16s, f32s, safetensors, u32s, with_header, write};
use safetensors::Dtype;
use std::path::Path;
use tempfile::TempDir;
use trelliq_format::{FormatError, ModelSource, TensorType, parse_safetensors_header};

fn model(bytes: &[u8]) -> (TempDir, Result<ModelSource, FormatError>) {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "config.json", r#"{"model_type":"llama"}"#);
    write(directory.path(), "model.safetensors", bytes);
    let source = ModelSource::open(directory.path().to_str().unwrap());
    (directory, source)
}

fn mixed() -> Vec<u8> {
    safetensors(&[
        ("a", Dtype::F32, &[2, 3], f32s(&[0.5, -1.0, 2.0, 3.0, -4.0, 1e-3])),
        ("b", Dtype::F16, &[3, 2], f16s(&[1.0, 2.0, 3.0, 4.0, 5.0, 65504.0])),
        ("c", Dtype::BF16, &[4], bf16s(&[1.5, -0.25, 2f32.powi(127), 0.0])),
        ("d", Dtype::U32, &[2, 1], u32s(&[7, u32::MAX])),
        ("e", Dtype::I64, &[1], 9i64.to_le_bytes().to_vec()),
        ("f", Dtype::F8_E4M3, &[3], vec![1, 2, 3]),
        ("g", Dtype::F32, &[], f32s(&[7.5])),
        ("h", Dtype::F32, &[0, 5], vec![]),
    ])
}

#[test]
fn every_dtype_is_read_as_it_is_stored() {
    let (_directory, source) = model(&mixed());
    let source = source.unwrap();
    assert_eq!(source.config()["model_type"], "llama");
    assert_eq!(source.tensors().len(), 8);
    assert_eq!(source.read_f32("a").unwrap(), [0.5, -1.0, 2.0, 3.0, -4.0, 1e-3]);
    assert_eq!(source.read_f32("b").unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 65504.0]);
    assert_eq!(source.read_f32("c").unwrap(), [1.5, -0.25, 2f32.powi(127), 0.0]);
    assert_eq!(source.read_f32("g").unwrap(), [7.5]);
    assert!(source.read_f32("h").unwrap().is_empty());
    let info = source.info("d").unwrap();
    assert_eq!((info.dtype, &info.shape[..]), (TensorType::Plain(Dtype::U32), &[2, 1][..]));
    assert_eq!(source.raw("d").unwrap().bytes(), u32s(&[7, u32::MAX]));
    assert_eq!(source.raw("f").unwrap().bytes(), [1, 2, 3]);
    let (dtype, bytes) = source.dense_bytes("e").unwrap();
    assert_eq!((dtype, &bytes[..]), (Dtype::I64, &9i64.to_le_bytes()[..]));
    assert!(matches!(&bytes, std::borrow::Cow::Borrowed(_)));
}

#[test]
fn rows_are_slices_of_the_first_dimension() {
    let (_directory, source) = model(&mixed());
    let source = source.unwrap();
    let mut row = [0.0; 2];
    source.read_rows_f32("b", 1..2, &mut row).unwrap();
    assert_eq!(row, [3.0, 4.0]);
    let mut two = [0.0; 4];
    source.read_rows_f32("b", 1..3, &mut two).unwrap();
    assert_eq!(two, [3.0, 4.0, 5.0, 65504.0]);
    source.read_rows_f32("b", 2..2, &mut []).unwrap();
    let beyond = source.read_rows_f32("b", 2..4, &mut two).unwrap_err();
    assert!(matches!(beyond, FormatError::Rows { start: 2, end: 4, rows: 3, .. }), "{beyond}");
    let short = source.read_rows_f32("b", 0..1, &mut two).unwrap_err();
    assert!(matches!(short, FormatError::Buffer { found: 4, expected: 2, .. }), "{short}");
}

#[test]
fn what_is_not_a_float_or_not_there_is_named() {
    let (directory, source) = model(&mixed());
    let source = source.unwrap();
    let file = directory.path().join("model.safetensors");
    let error = source.read_f32("d").unwrap_err().to_string();
    assert!(error.contains("`d`") && error.contains("U32"), "{error}");
    assert!(error.contains(file.to_str().unwrap()), "{error}");
    assert!(source.read_f32("f").unwrap_err().to_string().contains("F8_E4M3"));
    assert!(matches!(source.read_f32("z"), Err(FormatError::MissingTensor { .. })));
    assert!(matches!(source.raw("z"), Err(FormatError::MissingTensor { .. })));
}

#[test]
fn released_tensors_are_read_again() {
    let values: Vec<f32> = (0..40_000).map(|i| i as f32).collect();
    let tensors = [("w", Dtype::F32, &[200, 200][..], f32s(&values))];
    let (_directory, source) = model(&safetensors(&tensors));
    let source = source.unwrap();
    for _ in 0..2 {
        assert_eq!(source.read_f32("w").unwrap(), values);
        source.release("w");
    }
    source.release("no such tensor");
    let memory = ModelSource::from_safetensors_bytes("{}".into(), &safetensors(&tensors)).unwrap();
    memory.release("w");
    assert_eq!(memory.read_f32("w").unwrap(), values);
}

#[test]
fn sources_are_told_apart_by_their_hash() {
    let bytes = with_header(r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#, b"abc");
    let (_directory, source) = model(&bytes);
    let mut counted = 0;
    let hashes = source.unwrap().sha256(&mut |bytes| counted += bytes).unwrap();
    assert_eq!(hashes, ["422fc6bab8c609cf91ff21388c0d5954c3078806f75d074b524ac51541e3e4f4"]);
    assert_eq!(counted, bytes.len() as u64);
}

#[test]
fn sidecars_are_handed_over_as_they_are() {
    let (directory, _) = model(&mixed());
    write(directory.path(), "tokenizer.json", b"{\"x\": 1}");
    write(directory.path(), "chat_template.jinja", b"{{ messages }}");
    write(directory.path(), "README.md", b"not a part of the model");
    let source = ModelSource::open_path(directory.path()).unwrap();
    let names: Vec<&String> = source.sidecar_files().keys().collect();
    assert_eq!(names, ["chat_template.jinja", "tokenizer.json"]);
    assert_eq!(source.sidecar_files()["tokenizer.json"], b"{\"x\": 1}");
    assert_eq!(source.source_files(), [directory.path().join("model.safetensors")]);
}

fn sharded() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "config.json", "{}");
    let first = safetensors(&[("a", Dtype::F32, &[1], f32s(&[1.0]))]);
    let second = safetensors(&[
        ("b", Dtype::F32, &[1], f32s(&[2.0])),
        ("c", Dtype::F32, &[1], f32s(&[3.0])),
    ]);
    write(directory.path(), "one.safetensors", first);
    write(directory.path(), "two.safetensors", second);
    index(&directory, r#"{"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"}"#);
    directory
}

fn index(directory: &TempDir, map: &str) {
    let index = format!(r#"{{"metadata":{{}},"weight_map":{map}}}"#);
    write(directory.path(), "model.safetensors.index.json", index);
}

#[test]
fn shards_are_one_model() {
    let directory = sharded();
    let source = ModelSource::open_path(directory.path()).unwrap();
    let names: Vec<&str> = source.tensors().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(source.read_f32("c").unwrap(), [3.0]);
    assert_eq!(source.source_files().len(), 2);
    assert!(source.info("b").unwrap().file.ends_with("two.safetensors"));
}

#[test]
fn an_index_must_tell_the_truth() {
    let directory = sharded();
    let open = || ModelSource::open_path(directory.path()).unwrap_err();
    index(&directory, r#"{"a":"one.safetensors","x":"two.safetensors"}"#);
    let error = open();
    let named = matches!(&error, FormatError::MissingTensor { tensor, file }
        if tensor == "x" && file.ends_with("two.safetensors"));
    assert!(named, "{error}");
    index(&directory, r#"{"a":"two.safetensors","b":"one.safetensors"}"#);
    assert!(matches!(open(), FormatError::MissingTensor { tensor, .. } if tensor == "a"));
    index(&directory, r#"{"a":"one.safetensors","b":"gone.safetensors"}"#);
    assert!(matches!(open(), FormatError::Io { path, .. } if path.ends_with("gone.safetensors")));
    for shard in ["../one.safetensors", "/etc/passwd", "", "."] {
        index(&directory, &format!(r#"{{"a":"{shard}"}}"#));
        assert!(matches!(open(), FormatError::TensorHeader { tensor, .. } if tensor == "a"));
    }
    index(&directory, r#"{"a":7}"#);
    assert!(matches!(open(), FormatError::TensorHeader { .. }));
    index(&directory, "{}");
    assert!(matches!(open(), FormatError::Header { .. }));
    index(&directory, "[]");
    assert!(matches!(open(), FormatError::Header { .. }));
    write(directory.path(), "two.safetensors", mixed());
    index(&directory, r#"{"a":"one.safetensors","b":"two.safetensors"}"#);
    assert!(matches!(open(), FormatError::DuplicateTensor { tensor, .. } if tensor == "a"));
}

#[test]
fn what_is_no_model_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let open = || ModelSource::open_path(directory.path()).unwrap_err();
    assert!(matches!(open(), FormatError::Io { path, .. } if path.ends_with("config.json")));
    write(directory.path(), "config.json", "{");
    assert!(matches!(open(), FormatError::Json { path, .. } if path.ends_with("config.json")));
    write(directory.path(), "config.json", "{}");
    assert!(matches!(open(), FormatError::NotAModel { .. }));
    write(directory.path(), "config.json", r#"{"quantization":{"bits":4,"group_size":64}}"#);
    write(directory.path(), "model.safetensors", mixed());
    let error = open();
    assert!(matches!(&error, FormatError::Quantization { .. }), "{error}");
    let error = ModelSource::open("no/such/path/at/all").unwrap_err();
    assert!(matches!(&error, FormatError::NotAModel { .. }), "{error}");
}

fn parse(json: &str, data: usize) -> FormatError {
    let bytes = with_header(json, &vec![0; data]);
    parse_safetensors_header(Path::new("file"), &bytes).expect_err(json)
}

#[test]
fn a_header_that_lies_is_refused_by_tensor() {
    let entry = |name: &str, shape: &str, start: u64, end: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    };
    let two = |a: String, b: String| format!("{{{a},{b}}}");
    let error = parse(&two(entry("a", "[2]", 0, 8), entry("b", "[2]", 4, 12)), 12);
    let named = matches!(&error, FormatError::Overlap { tensor, other, .. }
        if tensor == "a" && other == "b");
    assert!(named, "{error}");
    let error = parse(&two(entry("a", "[2]", 0, 8), entry("b", "[2]", 12, 20)), 20);
    assert!(matches!(&error, FormatError::TensorHeader { tensor, .. } if tensor == "b"), "{error}");
    let error = parse(&two(entry("a", "[2]", 0, 8), entry("a", "[2]", 8, 16)), 16);
    assert!(matches!(&error, FormatError::DuplicateTensor { tensor, .. } if tensor == "a"));
    let error = parse(&format!("{{{}}}", entry("a", "[3]", 0, 8)), 8);
    assert!(matches!(&error, FormatError::TensorHeader { tensor, .. } if tensor == "a"), "{error}");
    let error = parse(&format!("{{{}}}", entry("a", "[2]", 8, 0)), 8);
    assert!(matches!(&error, FormatError::TensorHeader { .. }), "{error}");
    let shape = format!("[{0},{0}]", u64::MAX / 2);
    let error = parse(&format!("{{{}}}", entry("a", &shape, 0, 8)), 8);
    assert!(error.to_string().contains("overflows"), "{error}");
    let error = parse(&format!("{{{}}}", entry("a", "[4]", 0, 16)), 12);
    assert!(matches!(&error, FormatError::Truncated { tensor, .. } if tensor == "a"), "{error}");
    let error = parse(&format!("{{{}}}", entry("a", "[2]", 0, 8)), 9);
    assert!(matches!(&error, FormatError::Header { .. }), "{error}");
    let unknown = r#"{"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}"#;
    let error = parse(unknown, 4).to_string();
    assert!(error.contains("Q9"), "{error}");
    for json in ["", "[]", "{\"a\":1}", "nonsense"] {
        assert!(matches!(parse(json, 0), FormatError::Header { .. }));
    }
}

#[test]
fn empty_tensors_with_huge_dimensions_are_harmless() {
    let max = u32::MAX;
    for shape in [format!("[0,{max},{max},{max}]"), format!("[{max},0,{max},{max}]")] {
        let json = format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}"#);
        let source = ModelSource::from_safetensors_bytes("{}".into(), &with_header(&json, &[]));
        let source = source.unwrap();
        assert!(source.read_f32("a").unwrap().is_empty());
        assert!(source.dense_bytes("a").unwrap().1.is_empty());
    }
}

#[test]
fn a_truncated_file_is_refused_wherever_it_ends() {
    let whole = mixed();
    let path = Path::new("file");
    assert!(parse_safetensors_header(path, &whole).is_ok());
    for len in 0..whole.len() {
        assert!(parse_safetensors_header(path, &whole[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn no_changed_byte_makes_the_reader_panic() {
    let whole = mixed();
    for at in 0..whole.len() {
        for change in [1, 0x10, 0x80, 0xFF] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            let Ok(source) = ModelSource::from_safetensors_bytes("{}".into(), &bytes) else {
                continue;
            };
            for info in source.tensors() {
                let _ = source.read_f32(&info.name);
            }
        }
    }
}
