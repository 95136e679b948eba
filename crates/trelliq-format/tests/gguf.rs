//! GGUF headers and block formats: against candle's quantizer, formulas by hand, and every fault.

mod common;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use common::{F32, Gguf, Random, f16s, f32s, text, tiny, with_embedding};
use half::f16;
use std::path::Path;
use trelliq_format::{
    BlockType, Dtype, FormatError, GgufValue, ModelSource, TensorType, parse_gguf_header,
};

fn parse(bytes: &[u8]) -> Result<(), FormatError> {
    parse_gguf_header(Path::new("file.gguf"), bytes).map(|_| ())
}

const CODES: [(BlockType, u32, GgmlDType); 11] = [
    (BlockType::Q4_0, 2, GgmlDType::Q4_0),
    (BlockType::Q4_1, 3, GgmlDType::Q4_1),
    (BlockType::Q5_0, 6, GgmlDType::Q5_0),
    (BlockType::Q5_1, 7, GgmlDType::Q5_1),
    (BlockType::Q8_0, 8, GgmlDType::Q8_0),
    (BlockType::Q2_K, 10, GgmlDType::Q2K),
    (BlockType::Q3_K, 11, GgmlDType::Q3K),
    (BlockType::Q4_K, 12, GgmlDType::Q4K),
    (BlockType::Q5_K, 13, GgmlDType::Q5K),
    (BlockType::Q6_K, 14, GgmlDType::Q6K),
    (BlockType::Q8_K, 15, GgmlDType::Q8K),
];

/// A qwen2 model (no row of which is moved) with one more tensor.
fn holding(name: &str, shape: &[u64], code: u32, bytes: Vec<u8>) -> ModelSource {
    let gguf = with_embedding(tiny("qwen2"), 2).tensor(name, shape, code, bytes);
    ModelSource::from_gguf_bytes(&gguf.build()).unwrap()
}

#[test]
fn every_block_format_is_what_candle_makes_of_it() {
    let (rows, cols) = (5, 512);
    let values = Random(3).values(rows * cols);
    for (block, code, ggml) in CODES {
        let tensor = Tensor::from_vec(values.clone(), (rows, cols), &Device::Cpu).unwrap();
        let quantized = QTensor::quantize(&tensor, ggml).unwrap();
        let bytes = quantized.data().unwrap().to_vec();
        assert_eq!(bytes.len(), rows * cols / block.block_len() * block.block_bytes());
        let expected = quantized.dequantize(&Device::Cpu).unwrap();
        let expected: Vec<f32> = expected.flatten_all().unwrap().to_vec1().unwrap();
        let source = holding("output.weight", &[rows as u64, cols as u64], code, bytes);
        let info = source.info("lm_head.weight").unwrap();
        assert_eq!((info.dtype, &info.shape[..]), (TensorType::Block(block), &[rows, cols][..]));
        assert_eq!(source.read_f32("lm_head.weight").unwrap(), expected, "{}", block.name());
        let mut middle = vec![0.0; 2 * cols];
        source.read_rows_f32("lm_head.weight", 2..4, &mut middle).unwrap();
        assert_eq!(middle, expected[2 * cols..4 * cols], "{}", block.name());
    }
}

/// One block of every simple format, and its weights by the formulas of ggml-common.h.
#[test]
fn simple_blocks_follow_their_formulas() {
    let (scale, least) = (0.375f32, -1.25f32);
    let nibbles: Vec<u8> = (0..16).map(|i| (i * 7 % 16) | ((15 - i) << 4)).collect();
    // The low nibbles are the first 16 weights, the high ones the last 16.
    let ints = || {
        let low = nibbles.iter().map(|b| b & 15);
        low.chain(nibbles.iter().map(|b| b >> 4)).map(f32::from).collect::<Vec<f32>>()
    };
    let q4_0: Vec<f32> = ints().iter().map(|q| scale * (q - 8.0)).collect();
    let q4_1: Vec<f32> = ints().iter().map(|q| scale * q + least).collect();
    let signed: Vec<i8> = (0..32).map(|i| (i * 37 % 255 - 127) as i8).collect();
    let q8_0: Vec<f32> = signed.iter().map(|&q| scale * f32::from(q)).collect();
    let bytes = |heads: &[f32], rest: &[u8]| [f16s(heads), rest.to_vec()].concat();
    let signed: Vec<u8> = signed.iter().map(|&q| q as u8).collect();
    for (code, bytes, expected) in [
        (2, bytes(&[scale], &nibbles), q4_0),
        (3, bytes(&[scale, least], &nibbles), q4_1),
        (8, bytes(&[scale], &signed), q8_0),
    ] {
        let source = holding("output.weight", &[1, 32], code, bytes);
        assert_eq!(source.read_f32("lm_head.weight").unwrap(), expected, "type {code}");
    }
    let whole: Vec<u8> = (0..=255).collect();
    let expected: Vec<f32> = whole.iter().map(|&q| 0.1 * f32::from(q as i8)).collect();
    let bytes = [f32s(&[0.1]), whole, vec![0; 32]].concat();
    let source = holding("output.weight", &[1, 256], 15, bytes);
    assert_eq!(source.read_f32("lm_head.weight").unwrap(), expected, "Q8_K");
}

#[test]
fn a_vector_of_blocks_is_cut_anywhere() {
    let values: Vec<i8> = (0..96).map(|i| i - 48).collect();
    let mut bytes = Vec::new();
    for (index, block) in values.chunks(32).enumerate() {
        bytes.extend(f16s(&[(index + 1) as f32]));
        bytes.extend(block.iter().map(|&q| q as u8));
    }
    let source = holding("output_norm.weight", &[96], 8, bytes);
    let all = source.read_f32("model.norm.weight").unwrap();
    let expected: Vec<f32> =
        values.iter().enumerate().map(|(i, &q)| f32::from(q) * (i / 32 + 1) as f32).collect();
    assert_eq!(all, expected);
    for (start, end) in [(0, 1), (31, 33), (5, 70), (95, 96), (64, 64)] {
        let mut out = vec![0.0; end - start];
        source.read_rows_f32("model.norm.weight", start..end, &mut out).unwrap();
        assert_eq!(out, expected[start..end]);
    }
}

#[test]
fn plain_tensors_are_read_in_place() {
    let source = holding("output.weight", &[2, 2], 1, f16s(&[1.0, -2.0, 3.0, 0.5]));
    assert_eq!(source.read_f32("lm_head.weight").unwrap(), [1.0, -2.0, 3.0, 0.5]);
    let raw = source.raw("lm_head.weight").unwrap();
    assert_eq!((raw.dtype, raw.bytes()), (Dtype::F16, &f16s(&[1.0, -2.0, 3.0, 0.5])[..]));
    let source = holding("output.weight", &[1, 2], 30, common::bf16s(&[1.5, 2.5]));
    assert_eq!(source.read_f32("lm_head.weight").unwrap(), [1.5, 2.5]);
    let block = holding("output.weight", &[1, 32], 8, vec![0; 34]);
    assert!(matches!(block.raw("lm_head.weight"), Err(FormatError::Dtype { .. })));
}

#[test]
fn dequantized_copies_take_the_smallest_dtype_that_holds_them() {
    for (scale, dtype) in [(1.0, Dtype::F16), (65504.0, Dtype::BF16)] {
        let bytes = [f16s(&[scale]), vec![127; 32]].concat();
        let source = holding("output.weight", &[1, 32], 8, bytes);
        let (found, bytes) = source.dense_bytes("lm_head.weight").unwrap();
        assert_eq!((found, bytes.len()), (dtype, 64));
    }
    // 127 * 1e37 is more than any 16-bit float holds.
    let bytes = [f32s(&[3.4e38 / 127.0]), vec![127; 256], vec![0; 32]].concat();
    let source = holding("output.weight", &[1, 256], 15, bytes);
    let (found, bytes) = source.dense_bytes("lm_head.weight").unwrap();
    let first = f32::from_le_bytes(bytes[..4].try_into().unwrap());
    assert_eq!((found, first), (Dtype::F32, 127.0 * (3.4e38 / 127.0)));
    // An infinite scale is no reason to widen: it stays infinite in f16.
    let bytes = [f16::INFINITY.to_le_bytes().to_vec(), vec![1; 32]].concat();
    let source = holding("output.weight", &[1, 32], 8, bytes);
    assert_eq!(source.dense_bytes("lm_head.weight").unwrap().0, Dtype::F16);
}

#[test]
fn metadata_of_every_type_is_read() {
    let bytes = Gguf::new()
        .put("u8", 0, vec![200])
        .put("i8", 1, vec![0xFE])
        .put("u16", 2, 60_000u16.to_le_bytes().to_vec())
        .put("i16", 3, (-3i16).to_le_bytes().to_vec())
        .u32("u32", u32::MAX)
        .put("i32", 5, (-4i32).to_le_bytes().to_vec())
        .f32("f32", 0.5)
        .flag("bool", true)
        .text("text", "h\u{e9}")
        .put("u64", 10, u64::MAX.to_le_bytes().to_vec())
        .put("i64", 11, i64::MIN.to_le_bytes().to_vec())
        .put("f64", 12, 0.1f64.to_le_bytes().to_vec())
        .texts("texts", &["a", "", "bc"])
        .f32s("f32s", &[1.0, 2.0])
        .build();
    let header = parse_gguf_header(Path::new("file"), &bytes).unwrap();
    let get = |key: &str| header.metadata[key];
    assert_eq!(get("u8"), GgufValue::Unsigned(200));
    assert_eq!(get("i8"), GgufValue::Signed(-2));
    assert_eq!(get("u16"), GgufValue::Unsigned(60_000));
    assert_eq!(get("i16"), GgufValue::Signed(-3));
    assert_eq!(get("u32"), GgufValue::Unsigned(u32::MAX.into()));
    assert_eq!(get("i32"), GgufValue::Signed(-4));
    assert_eq!(get("f32"), GgufValue::Float(0.5));
    assert_eq!(get("bool"), GgufValue::Bool(true));
    assert_eq!(get("text"), GgufValue::Text("h\u{e9}"));
    assert_eq!(get("u64"), GgufValue::Unsigned(u64::MAX));
    assert_eq!(get("i64"), GgufValue::Signed(i64::MIN));
    assert_eq!(get("f64"), GgufValue::Float(0.1));
    let GgufValue::Array(texts) = get("texts") else { panic!() };
    assert_eq!(texts.len(), 3);
    let items: Vec<GgufValue> = texts.iter().collect();
    assert_eq!(items, [GgufValue::Text("a"), GgufValue::Text(""), GgufValue::Text("bc")]);
}

fn small() -> Gguf {
    with_embedding(tiny("llama"), 3)
        .tensor("output_norm.weight", &[8], F32, f32s(&[1.0; 8]))
        .texts("general.tags", &["x", "y"])
}

#[test]
fn a_header_that_lies_is_refused() {
    let refused = |bytes: &[u8], what: &str| {
        let error = parse(bytes).expect_err(what).to_string();
        assert!(error.contains(what) && error.contains("file.gguf"), "{what}: {error}");
    };
    let whole = small();
    assert!(parse(&whole.build()).is_ok());
    let mut magic = whole.build();
    magic[0] = b'g';
    refused(&magic, "GGUF");
    for version in [0, 1, 4] {
        let mut bytes = whole.build();
        bytes[4] = version;
        refused(&bytes, "version");
    }
    // A header with counts that no file holds must fail at once, without memory for them.
    for at in [8, 16] {
        let mut bytes = whole.build();
        bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(parse(&bytes).is_err());
    }
    refused(&whole.clone().u32("general.alignment", 0).build(), "power of two");
    refused(&whole.clone().u32("general.alignment", 48).build(), "power of two");
    refused(&whole.clone().text("general.alignment", "32").build(), "power of two");
    refused(&whole.clone().put("k", 13, vec![]).build(), "value type 13");
    refused(&whole.clone().put("k", 7, vec![2]).build(), "bool");
    refused(&whole.clone().array("k", 7, vec![vec![1], vec![3]]).build(), "bool");
    refused(&whole.clone().array("k", 9, vec![vec![0; 12]]).build(), "arrays of arrays");
    refused(
        &whole.clone().put("k", 8, [text("ab")[..8].to_vec(), vec![0xFF, 0xFE]].concat()).build(),
        "`k`",
    );
    let mut twice = whole.clone();
    twice.metadata.push(twice.metadata[1].clone());
    refused(&twice.build(), "comes twice");
    let lengths = [u64::MAX, 1 << 40];
    for len in lengths {
        refused(&whole.clone().put("k", 8, len.to_le_bytes().to_vec()).build(), "`k`");
        let array = [4u32.to_le_bytes().to_vec(), len.to_le_bytes().to_vec()].concat();
        refused(&whole.clone().put("k", 9, array).build(), "`k`");
    }
}

#[test]
fn a_tensor_that_lies_is_refused_by_name() {
    let refused = |gguf: &Gguf, what: &str| {
        let error = parse(&gguf.build()).expect_err(what).to_string();
        assert!(error.contains("`t`") && error.contains(what), "{what}: {error}");
    };
    let with =
        |shape: &[u64], code: u32, bytes: usize| small().tensor("t", shape, code, vec![0; bytes]);
    refused(&with(&[1, 1, 1, 1, 1], F32, 4), "5 dimensions");
    refused(&with(&[1 << 40, 1 << 40], F32, 4), "overflows");
    refused(&with(&[1 << 62], F32, 4), "overflows");
    refused(&with(&[u64::MAX], F32, 4), "overflows");
    refused(&with(&[2, 33], 8, 68), "whole blocks of 32");
    refused(&with(&[128], 12, 144), "whole blocks of 256");
    refused(&with(&[1], 99, 4), "type 99");
    refused(&with(&[1], 20, 4), "IQ4_NL");
    refused(&with(&[3], F32, 8), "truncated");
    let gguf = with(&[8], F32, 32);
    let at = |offsets: &[u64]| parse(&gguf.build_with(offsets)).unwrap_err();
    // The embedding has 96 bytes, the norm and `t` 32 each.
    let error = at(&[0, 96, 112]);
    assert!(matches!(&error, FormatError::TensorHeader { tensor, .. } if tensor == "t"), "{error}");
    let error = at(&[0, 96, 64]);
    assert!(matches!(&error, FormatError::Overlap { other, .. } if other == "t"), "{error}");
    let error = at(&[0, 96, 96]);
    assert!(matches!(&error, FormatError::Overlap { .. }), "{error}");
    let error = at(&[0, 96, u64::MAX - 31]);
    assert!(matches!(&error, FormatError::Truncated { tensor, .. } if tensor == "t"), "{error}");
    let mut twice = small();
    twice.tensors.push(twice.tensors[0].clone());
    assert!(matches!(parse(&twice.build()), Err(FormatError::DuplicateTensor { .. })));
}

#[test]
fn alignment_is_followed() {
    let mut gguf = small().u32("general.alignment", 128);
    gguf.alignment = 128;
    let source = ModelSource::from_gguf_bytes(&gguf.build()).unwrap();
    assert_eq!(source.read_f32("model.norm.weight").unwrap(), [1.0; 8]);
    let mut row = [0.0; 8];
    source.read_rows_f32("model.embed_tokens.weight", 1..2, &mut row).unwrap();
    assert_eq!(row, [8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]);
}

#[test]
fn a_truncated_file_is_refused_wherever_it_ends() {
    let whole = small().build();
    for len in 0..whole.len() {
        assert!(parse(&whole[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn no_changed_byte_makes_the_reader_panic() {
    let whole = small()
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &["<s>", "a", "b"])
        .f32s("tokenizer.ggml.scores", &[0.0, -1.0, -2.0])
        .i32s("tokenizer.ggml.token_type", &[3, 1, 1])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .build();
    ModelSource::from_gguf_bytes(&whole).unwrap();
    for at in 0..whole.len() {
        for change in [1, 4, 0x80, 0xFF] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            let Ok(source) = ModelSource::from_gguf_bytes(&bytes) else { continue };
            for info in source.tensors() {
                let _ = source.read_f32(&info.name);
            }
        }
    }
}
