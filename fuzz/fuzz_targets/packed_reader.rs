//! A packed model from bytes: two bytes of length, a `config.json` of that length, then a
//! safetensors file. Whatever loads must decode without a panic, to finite scales' worth of weights.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trelliq_format::{ModelSource, load_packed};
use trelliq_kernels::{Numerics, TrellisLinear};

/// Larger layers than that are not decoded: the time would go into them alone.
const MAX_WEIGHTS: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let Some((len, rest)) = data.split_first_chunk::<2>() else { return };
    let Some((config, tensors)) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len))) else {
        return;
    };
    let Ok(config) = serde_json::from_slice(config) else { return };
    let Ok(source) = ModelSource::from_safetensors_bytes(config, tensors) else { return };
    for path in source.quantization().iter().flat_map(|quantization| quantization.layers().keys()) {
        let Ok(layer) = load_packed(&source, path, None) else { continue };
        let weights = layer.matrix.in_features() * layer.matrix.out_features();
        let linear = TrellisLinear::new(layer.matrix, layer.rotation, layer.bias)
            .expect("what loads has consistent shapes");
        if weights <= MAX_WEIGHTS {
            let mut dense = vec![0.0; weights];
            linear.expand_weight(Numerics::Fast, &mut dense).expect("a buffer of the right length");
        }
    }
});
