//! Makes the files that the tests read, without the code under test.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView, serialize};
use std::path::Path;

pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn f16s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect()
}

pub fn bf16s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect()
}

pub fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A tensor: name, dtype, shape, bytes.
pub type Tensor<'a> = (&'a str, Dtype, &'a [usize], Vec<u8>);

/// A file as the safetensors crate writes it.
pub fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let mut views: Vec<(String, TensorView)> = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        views.push((name.to_string(), TensorView::new(*dtype, shape.to_vec(), bytes).unwrap()));
    }
    serialize(views, None).unwrap()
}

/// A file with a header of one's own.
pub fn with_header(json: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.extend(data);
    bytes
}

pub fn write(directory: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(directory.join(name), bytes).unwrap();
}

/// xorshift64*: the same numbers everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform in -1..1.
    pub fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn values(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.value()).collect()
    }
}

/// A GGUF file that is put together field by field.
#[derive(Clone)]
pub struct Gguf {
    pub metadata: Vec<(String, u32, Vec<u8>)>,
    pub tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
    pub alignment: u64,
}

pub const F32: u32 = 0;

impl Gguf {
    pub fn new() -> Self {
        Self { metadata: Vec::new(), tensors: Vec::new(), alignment: 32 }
    }

    pub fn put(mut self, key: &str, kind: u32, bytes: Vec<u8>) -> Self {
        self.metadata.retain(|(known, ..)| known != key);
        self.metadata.push((key.to_owned(), kind, bytes));
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.put(key, 4, value.to_le_bytes().to_vec())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.put(key, 6, value.to_le_bytes().to_vec())
    }

    pub fn flag(self, key: &str, value: bool) -> Self {
        self.put(key, 7, vec![value.into()])
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        self.put(key, 8, text(value))
    }

    pub fn array(self, key: &str, kind: u32, items: Vec<Vec<u8>>) -> Self {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((items.len() as u64).to_le_bytes());
        bytes.extend(items.concat());
        self.put(key, 9, bytes)
    }

    pub fn texts(self, key: &str, items: &[&str]) -> Self {
        self.array(key, 8, items.iter().map(|item| text(item)).collect())
    }

    pub fn f32s(self, key: &str, items: &[f32]) -> Self {
        self.array(key, 6, items.iter().map(|item| item.to_le_bytes().to_vec()).collect())
    }

    pub fn i32s(self, key: &str, items: &[i32]) -> Self {
        self.array(key, 5, items.iter().map(|item| item.to_le_bytes().to_vec()).collect())
    }

    /// `shape` outermost first.
    pub fn tensor(mut self, name: &str, shape: &[u64], code: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push((name.to_owned(), shape.to_vec(), code, bytes));
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let mut offset = 0;
        let offsets: Vec<u64> = self
            .tensors
            .iter()
            .map(|(.., bytes)| {
                let at = offset;
                offset += (bytes.len() as u64).next_multiple_of(self.alignment);
                at
            })
            .collect();
        self.build_with(&offsets)
    }

    /// With tensor data said to be elsewhere than it is.
    pub fn build_with(&self, offsets: &[u64]) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, kind, bytes) in &self.metadata {
            out.extend(text(key));
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
        for ((name, shape, code, _), offset) in self.tensors.iter().zip(offsets) {
            out.extend(text(name));
            out.extend((shape.len() as u32).to_le_bytes());
            out.extend(shape.iter().rev().flat_map(|dim| dim.to_le_bytes()));
            out.extend(code.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        for (.., bytes) in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
            out.extend(bytes);
        }
        out
    }
}

pub fn text(value: &str) -> Vec<u8> {
    let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
    bytes.extend(value.as_bytes());
    bytes
}

/// A model of one layer without tensors: hidden 8, two heads of 4, one of them for keys.
pub fn tiny(architecture: &str) -> Gguf {
    let key = |name: &str| format!("{architecture}.{name}");
    Gguf::new()
        .text("general.architecture", architecture)
        .u32(&key("embedding_length"), 8)
        .u32(&key("feed_forward_length"), 16)
        .u32(&key("block_count"), 1)
        .u32(&key("attention.head_count"), 2)
        .u32(&key("attention.head_count_kv"), 1)
        .u32(&key("context_length"), 128)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .f32(&key("rope.freq_base"), 500_000.0)
}

/// Adds an embedding of `rows` tokens.
pub fn with_embedding(gguf: Gguf, rows: u64) -> Gguf {
    let values: Vec<f32> = (0..rows * 8).map(|i| i as f32).collect();
    gguf.tensor("token_embd.weight", &[rows, 8], F32, f32s(&values))
}
