//! Every vector of the specification, bit for bit.

use half::f16;
use serde_json::Value;
use sha2::{Digest, Sha256};
use trelliq_codec::*;

fn golden() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/codec.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn sha256(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn int(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn codebooks() {
    let mut seen = 0;
    for entry in golden()["codebooks"].as_array().unwrap() {
        let code: Code = entry["code"].as_str().unwrap().parse().unwrap();
        let values = code_values(code, int(&entry["L"]) as u32);
        for (&value, expected) in values.iter().zip(floats(&entry["first"])) {
            assert!((f64::from(value) - expected).abs() < 1e-5, "{entry}: {value}");
        }
        assert!((code_rms(&values) - entry["rms"].as_f64().unwrap()).abs() < 1e-6, "{entry}");
        if let Some(sha) = entry["sha256_le_f32"].as_str() {
            assert_eq!(sha256(&values), sha, "{code} L={}", entry["L"]);
        }
        seen += 1;
    }
    assert_eq!(seen, 18);
}

#[test]
fn packed_blocks() {
    let golden = golden();
    let entries = golden["packed"].as_array().unwrap();
    assert_eq!(entries.len(), 14);
    for entry in entries {
        let code = entry["code"].as_str().unwrap().parse().unwrap();
        let (l, k) = (int(&entry["L"]) as u32, int(&entry["k"]) as u32);
        let trellis = Trellis::new(code, l, k, int(&entry["T"])).unwrap();
        let states: Vec<u16> =
            entry["states"].as_array().unwrap().iter().map(|s| int(s) as u16).collect();
        let expected: Vec<u32> =
            entry["words"].as_array().unwrap().iter().map(|w| int(w) as u32).collect();
        let blocks = states.chunks_exact(trellis.block_len());
        let mut decoded = Vec::new();
        for (states, expected) in blocks.zip(expected.chunks_exact(trellis.words_per_block())) {
            let mut words = vec![0; expected.len()];
            pack_block(&trellis, states, &mut words).unwrap();
            assert_eq!(words, expected);
            let mut back = vec![0; states.len()];
            unpack_block(&trellis, &words, &mut back).unwrap();
            assert_eq!(back, states);
            let mut values = vec![0.0; states.len()];
            decode_block(&trellis, &trellis.values(), &words, &mut values).unwrap();
            decoded.extend(values);
        }
        let scale = f16::from_f64(entry["scale"].as_f64().unwrap());
        let cols = decoded.len();
        let row = decode_rows(&trellis, &expected, &[scale], cols).unwrap();
        let scaled: Vec<f32> = decoded.iter().map(|v| v * scale.to_f32()).collect();
        assert_eq!(row, scaled);
        for (&value, expected) in row.iter().zip(floats(&entry["decoded_first8"])) {
            assert_eq!(value, expected as f32);
        }
        assert_eq!(sha256(&row), entry["decoded_sha256_le_f32"].as_str().unwrap());
    }
}
