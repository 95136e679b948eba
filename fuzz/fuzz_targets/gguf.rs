//! A GGUF file from bytes: header, metadata turned into a config and a tokenizer, and tensors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use trelliq_format::{ModelSource, parse_gguf_header};
use trelliq_model::ModelConfig;

/// Larger tensors than that are not read: the time would go into them alone.
const MAX_WEIGHTS: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let header = parse_gguf_header(Path::new("fuzzed.gguf"), data);
    let Ok(source) = ModelSource::from_gguf_bytes(data) else { return };
    header.expect("a file that opens has a header that parses");
    let _ = ModelConfig::from_json(source.config());
    for info in source.tensors().filter(|info| info.elements() <= MAX_WEIGHTS) {
        if let Ok(weights) = source.read_f32(&info.name) {
            assert_eq!(weights.len(), info.elements());
        }
        let _ = source.dense_bytes(&info.name);
    }
});
