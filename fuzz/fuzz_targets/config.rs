//! A `config.json`: the model's and its `quantization`, which must survive being written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use trelliq_format::QuantizationConfig;
use trelliq_model::ModelConfig;

fuzz_target!(|data: &[u8]| {
    let Ok(config) = serde_json::from_slice(data) else { return };
    let _ = ModelConfig::from_json(&config);
    if let Ok(Some(quantization)) = QuantizationConfig::from_model_config(&config) {
        let written = json!({ "quantization": quantization.to_json() });
        let again = QuantizationConfig::from_model_config(&written);
        assert_eq!(again, Ok(Some(quantization)));
    }
});
