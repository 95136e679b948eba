//! Coded layers of a model directory, checked and handed to the kernels in place.

use crate::quantization::{LayerQuantization, RotationBlocks};
use crate::source::{ModelSource, RawTensor, TensorInfo};
use crate::{FormatError, TensorType, directory};
use safetensors::Dtype;
use trelliq_codec::{CodecError, INTERLEAVED_WORDS, deinterleave};
use trelliq_kernels::{Axis, KernelError, PackedMatrix, Rotation, Words};

/// Weights of a group of the interleaved layout.
const INTERLEAVED_COLS: usize = 512;
/// Tensors that may lie beside each other at a coded layer's path.
const PARTS: [&str; 5] = ["weight", "scales", "bias", "su", "sv"];

/// A coded linear layer: `y = sv * H_out(What (H_in (su * x))) + bias`, What being `matrix`.
#[derive(Debug, Clone)]
pub struct PackedLayer {
    pub matrix: PackedMatrix,
    pub rotation: Option<Rotation>,
    /// `[out]`
    pub bias: Option<Vec<f32>>,
}

/// Loads the coded layer at `path`, for example `model.layers.0.mlp.gate_proj`.
///
/// `shape` is the (in, out) that the model's config implies, where the caller knows it. Words stay
/// in the mapped file, unless they lie at an unaligned byte or in the interleaved layout.
///
/// Errors when the layer has no entry under `quantization`, when a tensor is missing or not known,
/// when a dtype or shape disagrees with that entry, with `shape` or with the layer's other
/// tensors, and when a scale or channel factor is not finite.
pub fn load_packed(
    source: &ModelSource,
    path: &str,
    shape: Option<(usize, usize)>,
) -> Result<PackedLayer, FormatError> {
    let coding = source.quantization().and_then(|config| config.layer(path));
    let coding = *coding.ok_or_else(|| FormatError::NotCoded {
        layer: path.to_owned(),
        file: source.root().join(directory::CONFIG),
    })?;
    Layer { source, path, coding }.load(shape)
}

/// A layer's place in a model and its entry under `quantization`.
struct Layer<'a> {
    source: &'a ModelSource,
    path: &'a str,
    coding: LayerQuantization,
}

impl Layer<'_> {
    fn load(&self, shape: Option<(usize, usize)>) -> Result<PackedLayer, FormatError> {
        self.check_parts()?;
        let codes = self.codes()?;
        let (rows, cols) = self.stored_shape(&codes)?;
        let (in_features, out_features) = match self.coding.axis {
            Axis::Out => (rows, cols),
            Axis::In => (cols, rows),
        };
        if let Some((inputs, outputs)) = shape.filter(|s| *s != (in_features, out_features)) {
            let (file, tensor) = (codes.file, self.name("weight"));
            let (found, expected) = (vec![in_features, out_features], vec![inputs, outputs]);
            return Err(FormatError::LayerShape { file, tensor, found, expected });
        }
        let scales = self.f16("scales", rows)?;
        let words = self.words(&codes, rows, cols)?;
        let (trellis, axis) = (self.coding.trellis, self.coding.axis);
        let matrix = PackedMatrix::new(trellis, axis, in_features, out_features, words, scales)
            .map_err(|source| self.kernel_error("scales", source))?;
        let rotation = match self.coding.rotation {
            Some(blocks) => Some(self.rotation(blocks, in_features, out_features)?),
            None => None,
        };
        Ok(PackedLayer { matrix, rotation, bias: self.bias(out_features)? })
    }

    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.path)
    }

    /// A tensor at the layer's path that is not known would change what the layer means.
    fn check_parts(&self) -> Result<(), FormatError> {
        for info in self.source.tensors_under(self.path) {
            let part = &info.name[self.path.len() + 1..];
            let rotated = self.coding.rotation.is_some();
            let reason = match part {
                "su" | "sv" if !rotated => "the layer's entry under `quantization` has no rotation",
                part if PARTS.contains(&part) => continue,
                _ => "a coded layer has no such tensor that this version knows",
            };
            return Err(FormatError::tensor(&info.file, &info.name, reason));
        }
        Ok(())
    }

    /// The packed words as stored.
    fn codes(&self) -> Result<RawTensor, FormatError> {
        let name = self.name("weight");
        expect_dtype(self.source.require(&name)?, Dtype::U32, "U32")?;
        self.source.raw(&name)
    }

    /// (rows, cols) of the stored matrix, from the shape of its words.
    fn stored_shape(&self, codes: &RawTensor) -> Result<(usize, usize), FormatError> {
        let refuse =
            |reason: String| Err(FormatError::tensor(&codes.file, &self.name("weight"), reason));
        // Beside a zero the other dimensions may be anything.
        if codes.shape.contains(&0) {
            return refuse(format!("its shape {:?} is empty", codes.shape));
        }
        let (rows, cols) = match codes.shape[..] {
            [rows, words] => {
                let (bits, stored) = (self.coding.trellis.bits() as usize, words * 32);
                if !stored.is_multiple_of(bits) {
                    let reason = format!("{words} words a row are no whole weights of {bits} bits");
                    return refuse(reason);
                }
                (rows, stored / bits)
            }
            [groups, rows, INTERLEAVED_WORDS] if self.coding.axis == Axis::Out => {
                (rows, groups * INTERLEAVED_COLS)
            }
            _ => {
                let shape = &codes.shape;
                return refuse(format!(
                    "its shape {shape:?} is neither [rows, words] nor, for axis 0, [cols / 512, rows, 48]"
                ));
            }
        };
        let whole = self.coding.trellis.words_per_row(cols);
        whole.map_err(|source| self.codec_error(codes, source))?;
        Ok((rows, cols))
    }

    fn words(&self, codes: &RawTensor, rows: usize, cols: usize) -> Result<Words, FormatError> {
        let words = match Words::mapped(codes.map.clone(), codes.offset, codes.len / 4) {
            Ok(words) => words,
            // The safetensors specification does not ask for aligned data.
            Err(_) => {
                let (words, _) = codes.bytes().as_chunks();
                words.iter().map(|&word| u32::from_le_bytes(word)).collect::<Vec<_>>().into()
            }
        };
        match codes.shape.len() {
            3 => deinterleave(&self.coding.trellis, &words, rows, cols)
                .map(Words::from)
                .map_err(|source| self.codec_error(codes, source)),
            _ => Ok(words),
        }
    }

    /// One of the layer's vectors, `[len]` of f16.
    fn f16(&self, part: &str, len: usize) -> Result<Vec<f32>, FormatError> {
        let name = self.name(part);
        let info = self.source.require(&name)?;
        expect_dtype(info, Dtype::F16, "F16")?;
        expect_shape(info, &[len])?;
        self.source.read_f32(&name)
    }

    fn rotation(
        &self,
        blocks: RotationBlocks,
        in_features: usize,
        out_features: usize,
    ) -> Result<Rotation, FormatError> {
        let su = self.f16("su", in_features)?;
        let sv = self.f16("sv", out_features)?;
        // Either vector or block may be at fault: the error names the one whose check fails.
        let input = Rotation::new(blocks.input, 1, su.clone(), Vec::new());
        input.map_err(|source| self.kernel_error("su", source))?;
        Rotation::new(blocks.input, blocks.output, su, sv)
            .map_err(|source| self.kernel_error("sv", source))
    }

    fn bias(&self, len: usize) -> Result<Option<Vec<f32>>, FormatError> {
        let name = self.name("bias");
        let Some(info) = self.source.info(&name) else {
            return Ok(None);
        };
        expect_shape(info, &[len])?;
        self.source.read_f32(&name).map(Some)
    }

    fn kernel_error(&self, part: &str, source: KernelError) -> FormatError {
        let tensor = self.name(part);
        let file = self.source.info(&tensor).map_or(self.source.root(), |info| &info.file);
        FormatError::Kernel { file: file.to_owned(), tensor, source }
    }

    fn codec_error(&self, codes: &RawTensor, source: CodecError) -> FormatError {
        FormatError::Codec { file: codes.file.clone(), tensor: self.name("weight"), source }
    }
}

fn expect_dtype(
    info: &TensorInfo,
    dtype: Dtype,
    expected: &'static str,
) -> Result<(), FormatError> {
    match info.dtype == TensorType::Plain(dtype) {
        true => Ok(()),
        false => Err(FormatError::Dtype {
            file: info.file.clone(),
            tensor: info.name.clone(),
            found: info.dtype.to_string(),
            expected,
        }),
    }
}

fn expect_shape(info: &TensorInfo, expected: &[usize]) -> Result<(), FormatError> {
    match info.shape == expected {
        true => Ok(()),
        false => Err(FormatError::Shape {
            file: info.file.clone(),
            tensor: info.name.clone(),
            found: info.shape.clone(),
            expected: expected.to_vec(),
        }),
    }
}
