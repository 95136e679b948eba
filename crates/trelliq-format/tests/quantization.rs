//! `quantization` of `config.json`: the written form of docs/spec/format.md, both ways.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use trelliq_codec::{Code, Trellis};
use trelliq_format::{LayerQuantization, QuantizationConfig, QuantizationError, RotationBlocks};
use trelliq_kernels::Axis;

fn trellis(code: Code, state_bits: u32, bits: u32, block_len: usize) -> Trellis {
    Trellis::new(code, state_bits, bits, block_len).unwrap()
}

fn read(value: Value) -> Result<QuantizationConfig, QuantizationError> {
    QuantizationConfig::from_json(&value)
}

#[test]
fn the_plain_format_of_another_engine_loads() {
    let config = read(json!({
        "mode": "trellis", "bits": 3, "group_size": 256,
        "trellis": { "L": 12, "code": "1mad", "axis": 0 },
        "model.layers.0.mlp.gate_proj": {
            "mode": "trellis", "bits": 3, "group_size": 256,
            "trellis": { "L": 12, "code": "1mad", "axis": 0 },
        },
        "model.layers.0.mlp.up_proj": { "bits": 4, "trellis": { "axis": 1 } },
        "lm_head": false,
    }))
    .unwrap();
    let gate = config.layer("model.layers.0.mlp.gate_proj").unwrap();
    let expected = trellis(Code::OneMad, 12, 3, 256);
    assert_eq!((gate.trellis, gate.axis, gate.rotation), (expected, Axis::Out, None));
    let up = config.layer("model.layers.0.mlp.up_proj").unwrap();
    assert_eq!((up.trellis, up.axis), (trellis(Code::OneMad, 12, 4, 256), Axis::In));
    assert_eq!(config.layer("lm_head"), None);
    assert_eq!(config.layer("model.layers.0.mlp.down_proj"), None);
    assert_eq!(config.trellis_format(), 1);
    assert_eq!(read(config.to_json()).unwrap(), config);
}

#[test]
fn equal_configurations_are_written_as_the_same_bytes() {
    let plain = LayerQuantization {
        trellis: trellis(Code::OneMad, 12, 3, 192),
        axis: Axis::Out,
        rotation: None,
    };
    let rotated = LayerQuantization {
        trellis: trellis(Code::ThreeInst, 16, 2, 288),
        axis: Axis::In,
        rotation: Some(RotationBlocks { input: 64, output: 512 }),
    };
    let layers = [("b", rotated), ("a", plain), ("c", plain)];
    let config = QuantizationConfig::new(layers.map(|(p, l)| (p.to_owned(), l)).into());
    let coded =
        r#""mode":"trellis","bits":3,"group_size":192,"trellis":{"L":12,"code":"1mad","axis":0}"#;
    let other = r#""mode":"trellis","bits":2,"group_size":288,"trellis":{"L":16,"code":"3inst","axis":1},"rotation":{"in":64,"out":512}"#;
    let expected = format!(
        r#"{{{coded},"trellis_format":2,"a":{{{coded}}},"b":{{{other}}},"c":{{{coded}}}}}"#
    );
    assert_eq!(config.to_json().to_string(), expected);
    assert_eq!(read(config.to_json()).unwrap(), config);
    let whole = json!({ "model_type": "llama", "quantization": config.to_json() });
    assert_eq!(QuantizationConfig::from_model_config(&whole).unwrap(), Some(config));
}

#[test]
fn a_model_without_quantization_has_none() {
    assert_eq!(QuantizationConfig::from_model_config(&json!({})).unwrap(), None);
    let null = json!({ "quantization": null });
    assert_eq!(QuantizationConfig::from_model_config(&null).unwrap(), None);
    let empty = QuantizationConfig::new(BTreeMap::new());
    assert_eq!(empty.to_json(), json!({ "trellis_format": 1 }));
}

/// A rotated layer with one thing changed.
fn changed(change: impl FnOnce(&mut Value)) -> String {
    let mut value = json!({
        "trellis_format": 2,
        "l": {
            "mode": "trellis", "bits": 3, "group_size": 256,
            "trellis": { "L": 12, "code": "1mad", "axis": 0 },
            "rotation": { "in": 512, "out": 1 },
        },
    });
    read(value.clone()).unwrap();
    change(&mut value);
    read(value).expect_err("a change that must be refused").to_string()
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let refused = |name: &str, change: fn(&mut Value)| {
        let error = changed(change);
        assert!(error.contains(&format!("`{name}`")), "{name}: {error}");
    };
    refused("quantization.l.lut", |q| q["l"]["lut"] = json!(1));
    refused("quantization.l.trellis.V", |q| q["l"]["trellis"]["V"] = json!(2));
    refused("quantization.l.rotation.seed", |q| q["l"]["rotation"]["seed"] = json!(2));
    refused("quantization.colour", |q| q["colour"] = json!("red"));
    refused("quantization.other", |q| q["other"] = json!(true));
    refused("quantization.rotation.in", |q| q["rotation"] = json!({ "in": 2, "out": 2 }));
    refused("quantization.l.mode", |q| q["l"]["mode"] = json!("affine"));
    refused("quantization.mode", |q| q["mode"] = json!("affine"));
    refused("quantization.l.trellis.code", |q| q["l"]["trellis"]["code"] = json!("2mad"));
    refused("quantization.l.trellis.axis", |q| q["l"]["trellis"]["axis"] = json!(2));
    refused("quantization.l.trellis", |q| q["l"]["trellis"] = json!("1mad"));
    refused("quantization.l.bits", |q| q["l"]["bits"] = json!(3.5));
    refused("quantization.l.bits", |q| q["l"]["bits"] = json!(u64::MAX));
    refused("quantization.l.group_size", |q| q["l"]["group_size"] = json!(-1));
    refused("quantization.l.rotation.in", |q| q["l"]["rotation"]["in"] = json!(48));
    refused("quantization.l.rotation.in", |q| q["l"]["rotation"]["in"] = json!(0));
    refused("quantization.trellis_format", |q| q["trellis_format"] = json!(3));
    refused("quantization.trellis_format", |q| q["trellis_format"] = json!("2"));
    refused("quantization.l.rotation", |q| q["trellis_format"] = json!(1));
    assert!(changed(|q| q["l"]["bits"] = json!(9)).contains("bits (K) is 9"));
    assert!(changed(|q| q["l"]["group_size"] = json!(100)).contains("block_len (T) is 100"));
    assert!(changed(|q| *q = json!([1])).contains("`quantization`"));
}

#[test]
fn what_neither_a_layer_nor_the_defaults_give_is_missing() {
    for (name, part) in [
        ("mode", "mode"),
        ("bits", "bits"),
        ("group_size", "group_size"),
        ("trellis", "trellis.code"),
    ] {
        let error = changed(|q| {
            q["l"].as_object_mut().unwrap().remove(name);
        });
        assert!(error.contains(&format!("`quantization.l.{part}` is missing")), "{error}");
    }
    let error = changed(|q| q["l"]["rotation"] = json!({ "in": 2 }));
    assert!(error.contains("`quantization.l.rotation.out` is missing"), "{error}");
    // A rotation is what format 2 added, so it needs the number that says so.
    let error = changed(|q| {
        q.as_object_mut().unwrap().remove("trellis_format");
    });
    assert!(error.contains("trellis_format"), "{error}");
    // Groups of 64 at 4 bits without a mode are another engine's, which is not a trellis.
    let error = read(json!({ "bits": 4, "group_size": 64 })).unwrap_err();
    assert_eq!(error, QuantizationError::Missing { key: "quantization.mode".to_owned() });
}

#[test]
fn a_hostile_value_makes_no_large_message() {
    let error = changed(|q| q["l"]["mode"] = json!("é".repeat(1_000_000)));
    assert!(error.len() < 400, "{} bytes", error.len());
}
