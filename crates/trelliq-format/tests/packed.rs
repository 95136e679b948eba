//! Coded layers: decoded as the codec decodes them, and every refusal of docs/spec/format.md.

mod common;

use common::{Random, Tensor, f16s, f32s, safetensors, u32s, with_header};
use safetensors::Dtype;
use serde_json::{Value, json};
use trelliq_codec::{Code, Trellis, decode_rows, interleave};
use trelliq_format::{FormatError, ModelSource, PackedLayer, load_packed};
use trelliq_kernels::{Axis, KernelError, Numerics};

const OUT: usize = 4;
const IN: usize = 512;

fn config(axis: u32, rotation: Option<(usize, usize)>) -> Value {
    let mut layer = json!({
        "mode": "trellis", "bits": 3, "group_size": 256,
        "trellis": { "L": 12, "code": "1mad", "axis": axis },
    });
    if let Some((input, output)) = rotation {
        layer["rotation"] = json!({ "in": input, "out": output });
    }
    json!({ "quantization": { "trellis_format": 2, "l": layer } })
}

fn trellis() -> Trellis {
    Trellis::new(Code::OneMad, 12, 3, 256).unwrap()
}

/// Any words are a walk, so random ones do.
fn words(len: usize) -> Vec<u32> {
    let mut random = Random(11);
    (0..len).map(|_| random.bits() as u32).collect()
}

const SCALES: [f32; OUT] = [0.5, 0.25, 2.0, 0.125];

/// The tensors of a layer of 4 outputs and 512 inputs, axis 1.
fn layer() -> Vec<Tensor<'static>> {
    vec![
        ("l.weight", Dtype::U32, &[OUT, IN * 3 / 32], u32s(&words(OUT * IN * 3 / 32))),
        ("l.scales", Dtype::F16, &[OUT], f16s(&SCALES)),
    ]
}

fn rotated() -> Vec<Tensor<'static>> {
    let mut tensors = layer();
    let signs: Vec<f32> = (0..IN).map(|i| if i % 3 == 0 { -1.0 } else { 1.5 }).collect();
    tensors.push(("l.su", Dtype::F16, &[IN], f16s(&signs)));
    tensors.push(("l.sv", Dtype::F16, &[OUT], f16s(&[1.0, -1.0, 1.0, 2.0])));
    tensors
}

fn load(config: Value, tensors: &[Tensor]) -> Result<PackedLayer, FormatError> {
    let source = ModelSource::from_safetensors_bytes(config, &safetensors(tensors)).unwrap();
    load_packed(&source, "l", Some((IN, OUT)))
}

fn decode(layer: &PackedLayer) -> Vec<f32> {
    let (matrix, values) = (&layer.matrix, layer.matrix.trellis().values());
    let mut out = vec![0.0; matrix.rows() * matrix.cols()];
    for (row, out) in out.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.decode_row(row, &values, Numerics::Fast, out).unwrap();
    }
    out
}

/// What the codec makes of the words.
fn expected() -> Vec<f32> {
    decode_rows(&trellis(), &words(OUT * IN * 3 / 32), &SCALES.map(half::f16::from_f32), IN)
        .unwrap()
}

#[test]
fn a_layer_decodes_as_the_codec_does() {
    let layer = load(config(1, None), &layer()).unwrap();
    assert_eq!(layer.matrix.axis(), Axis::In);
    assert_eq!((layer.matrix.in_features(), layer.matrix.out_features()), (IN, OUT));
    assert_eq!(decode(&layer), expected());
    assert!(layer.rotation.is_none() && layer.bias.is_none());
}

#[test]
fn words_stay_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    common::write(directory.path(), "config.json", config(1, None).to_string());
    common::write(directory.path(), "model.safetensors", safetensors(&layer()));
    let source = ModelSource::open_path(directory.path()).unwrap();
    let layer = load_packed(&source, "l", None).unwrap();
    let raw = source.raw("l.weight").unwrap();
    assert_eq!(layer.matrix.words().as_ptr().cast(), raw.bytes().as_ptr());
    drop(source);
    assert_eq!(decode(&layer), expected());
}

#[test]
fn words_at_an_odd_byte_are_copied() {
    let weight = OUT * IN * 3 / 32 * 4;
    for pad in 0..4 {
        let mut json = format!(
            r#"{{"l.weight":{{"dtype":"U32","shape":[{OUT},{}],"data_offsets":[0,{weight}]}},"l.scales":{{"dtype":"F16","shape":[{OUT}],"data_offsets":[{weight},{}]}}}}"#,
            IN * 3 / 32,
            weight + 2 * OUT,
        );
        json.push_str(&" ".repeat(pad));
        let data = [u32s(&words(weight / 4)), f16s(&SCALES)].concat();
        let bytes = with_header(&json, &data);
        let source = ModelSource::from_safetensors_bytes(config(1, None), &bytes).unwrap();
        assert_eq!(decode(&load_packed(&source, "l", None).unwrap()), expected());
    }
}

#[test]
fn axis_0_is_stored_by_inputs() {
    let mut tensors = layer();
    tensors[1].2 = &[OUT];
    let source =
        ModelSource::from_safetensors_bytes(config(0, None), &safetensors(&tensors)).unwrap();
    let layer = load_packed(&source, "l", Some((OUT, IN))).unwrap();
    assert_eq!((layer.matrix.in_features(), layer.matrix.out_features()), (OUT, IN));
    assert_eq!(decode(&layer), expected());
}

#[test]
fn the_interleaved_layout_is_the_same_layer() {
    let (rows, cols) = (4, 1024);
    let codes = words(rows * cols * 3 / 32);
    let groups = interleave(&trellis(), &codes, rows, cols).unwrap();
    let tensors: Vec<Tensor> = vec![
        ("l.weight", Dtype::U32, &[2, 4, 48], u32s(&groups)),
        ("l.scales", Dtype::F16, &[4], f16s(&SCALES)),
    ];
    let open =
        |config| ModelSource::from_safetensors_bytes(config, &safetensors(&tensors)).unwrap();
    let layer = load_packed(&open(config(0, None)), "l", Some((rows, cols))).unwrap();
    assert_eq!(layer.matrix.words(), codes);
    // Only axis 0 has such a layout, and only this one code.
    let error = load_packed(&open(config(1, None)), "l", None).unwrap_err();
    assert!(matches!(error, FormatError::TensorHeader { .. }), "{error}");
    let mut other = config(0, None);
    other["quantization"]["l"]["trellis"]["L"] = json!(14);
    let error = load_packed(&open(other), "l", None).unwrap_err();
    assert!(matches!(error, FormatError::Codec { .. }), "{error}");
}

#[test]
fn rotations_and_biases_come_along() {
    let mut tensors = rotated();
    tensors.push(("l.bias", Dtype::BF16, &[OUT], common::bf16s(&[1.0, 2.0, 3.0, 4.0])));
    let layer = load(config(1, Some((512, 4))), &tensors).unwrap();
    let rotation = layer.rotation.unwrap();
    assert_eq!((rotation.in_block(), rotation.out_block()), (512, 4));
    assert_eq!(rotation.su()[..4], [-1.0, 1.5, 1.5, -1.0]);
    assert_eq!(rotation.sv(), [1.0, -1.0, 1.0, 2.0]);
    assert_eq!(layer.bias.unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

/// The error of a layer with one tensor replaced, or left out where it has no bytes.
fn broken(config: Value, name: &'static str, with: Option<Tensor<'static>>) -> FormatError {
    let mut tensors = rotated();
    tensors.retain(|(known, ..)| *known != name);
    tensors.extend(with);
    load(config, &tensors).expect_err(name)
}

#[test]
fn every_fault_names_its_tensor_and_file() {
    let whole = || config(1, Some((512, 4)));
    assert!(load(whole(), &rotated()).is_ok());
    for part in ["l.weight", "l.scales", "l.su", "l.sv"] {
        let error = broken(whole(), part, None);
        assert!(matches!(&error, FormatError::MissingTensor { tensor, .. } if tensor == part));
    }
    let wide = IN * 3 / 32;
    let cases: [(&str, Tensor, &str); 12] = [
        ("l.weight", ("l.weight", Dtype::I32, &[OUT, 48], vec![0; OUT * wide * 4]), "I32"),
        ("l.weight", ("l.weight", Dtype::U32, &[OUT, 47], vec![0; OUT * 47 * 4]), "47 words a row"),
        ("l.weight", ("l.weight", Dtype::U32, &[OUT, 27], vec![0; OUT * 27 * 4]), "288 weights"),
        ("l.weight", ("l.weight", Dtype::U32, &[OUT, 24], vec![0; OUT * 24 * 4]), "[256, 4]"),
        ("l.weight", ("l.weight", Dtype::U32, &[2, 48], vec![0; 2 * 48 * 4]), "[512, 2]"),
        ("l.weight", ("l.weight", Dtype::U32, &[192], vec![0; 192 * 4]), "[192]"),
        ("l.weight", ("l.weight", Dtype::U32, &[0, 48], vec![]), "empty"),
        ("l.scales", ("l.scales", Dtype::F32, &[OUT], f32s(&SCALES)), "F32"),
        ("l.scales", ("l.scales", Dtype::F16, &[3], f16s(&SCALES[..3])), "[3]"),
        ("l.scales", ("l.scales", Dtype::F16, &[1, OUT], f16s(&SCALES)), "[1, 4]"),
        ("l.su", ("l.su", Dtype::F16, &[OUT], f16s(&SCALES)), "[4]"),
        ("l.bias", ("l.bias", Dtype::F16, &[5], f16s(&[0.0; 5])), "[5]"),
    ];
    for (name, tensor, what) in cases {
        let error = broken(whole(), name, Some(tensor)).to_string();
        assert!(error.contains(&format!("`{name}`")), "{error}");
        assert!(error.contains("model.safetensors") && error.contains(what), "{what}: {error}");
    }
}

#[test]
fn scales_and_factors_must_be_finite() {
    let whole = || config(1, Some((512, 4)));
    for bad in [f32::NAN, f32::INFINITY] {
        let scales = f16s(&[1.0, 1.0, bad, 1.0]);
        let error =
            broken(whole(), "l.scales", Some(("l.scales", Dtype::F16, &[OUT], scales.clone())));
        let FormatError::Kernel { tensor, source, .. } = &error else { panic!("{error}") };
        assert_eq!(tensor, "l.scales");
        assert!(matches!(source, KernelError::NonFiniteScale { row: 2, .. }), "{error}");
        let error = broken(whole(), "l.sv", Some(("l.sv", Dtype::F16, &[OUT], scales)));
        let FormatError::Kernel { tensor, .. } = &error else { panic!("{error}") };
        assert_eq!(tensor, "l.sv");
    }
}

#[test]
fn what_the_config_does_not_explain_is_refused() {
    let error = load(config(1, None), &rotated()).unwrap_err().to_string();
    assert!(error.contains("`l.su`") && error.contains("rotation"), "{error}");
    let error = load(config(1, Some((512, 8))), &rotated()).unwrap_err();
    assert!(matches!(&error, FormatError::Kernel { tensor, .. } if tensor == "l.sv"), "{error}");
    let mut tensors = layer();
    tensors.push(("l.codebook", Dtype::F16, &[1], f16s(&[1.0])));
    let error = load(config(1, None), &tensors).unwrap_err().to_string();
    assert!(error.contains("`l.codebook`"), "{error}");
    let source = ModelSource::from_safetensors_bytes(json!({}), &safetensors(&layer())).unwrap();
    let error = load_packed(&source, "l", None).unwrap_err();
    assert!(matches!(&error, FormatError::NotCoded { layer, .. } if layer == "l"), "{error}");
    // A layer below the path is none of its parts.
    let mut tensors = layer();
    tensors.push(("l.inner.weight", Dtype::F16, &[1], f16s(&[1.0])));
    tensors.push(("l2.weight", Dtype::F16, &[1], f16s(&[1.0])));
    assert!(load(config(1, None), &tensors).is_ok());
}

#[test]
fn no_changed_byte_makes_the_loader_panic() {
    let tensors = rotated();
    let bytes = safetensors(&tensors);
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for at in 0..header {
        for change in [1, 2, 0x10, 0x7F] {
            let mut bytes = bytes.clone();
            bytes[at] ^= change;
            let config = config(1, Some((512, 4)));
            if let Ok(source) = ModelSource::from_safetensors_bytes(config, &bytes) {
                let _ = load_packed(&source, "l", None);
            }
        }
    }
}
