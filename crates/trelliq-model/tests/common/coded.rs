//! Models whose layers have random codes: any words are valid ones, since a block is a ring.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use trelliq_codec::{Code, Trellis};
use trelliq_format::{
    Dtype, LayerQuantization, ModelSource, ModelWriter, QuantizationConfig, RotationBlocks,
    WriterOptions,
};
use trelliq_kernels::Axis;

/// Path of a coded layer, its outputs and its inputs.
pub type Coded = (String, [usize; 2]);

struct Words(u64);

impl Words {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 32) as u32
    }

    fn bytes(&mut self, words: usize) -> Vec<u8> {
        (0..words).flat_map(|_| self.next().to_le_bytes()).collect()
    }

    /// f16 values from `low` to `low + width`.
    fn halves(&mut self, count: usize, low: f32, width: f32) -> Vec<u8> {
        let value = |random: u32| low + width * (random as f32 / 4_294_967_296.0);
        (0..count).flat_map(|_| half::f16::from_f32(value(self.next())).to_le_bytes()).collect()
    }
}

/// All linear layers of the decoder layers that blocks of 32 weights divide both ways, and `more`.
pub fn layers(source: &ModelSource, more: &[(&str, &str)]) -> Vec<Coded> {
    let shape = |tensor: &str| -> [usize; 2] {
        source.require(tensor).unwrap().shape.clone().try_into().unwrap()
    };
    let inner = source.tensors().filter(|info| info.name.ends_with("_proj.weight"));
    let inner = inner.map(|info| info.name.strip_suffix(".weight").unwrap().to_owned());
    let inner = inner.map(|path| (path.clone(), shape(&format!("{path}.weight"))));
    let inner = inner.filter(|(_, shape)| shape.iter().all(|dim| dim % 32 == 0));
    inner.chain(more.iter().map(|(path, like)| ((*path).to_owned(), shape(like)))).collect()
}

fn coding(path: &str, [out, inputs]: [usize; 2], axis: Axis, rotated: bool) -> LayerQuantization {
    // Rows are looked up in an embedding, so each output of it must be a stored row.
    let embedding = path.ends_with("embed_tokens");
    let axis = if embedding { Axis::In } else { axis };
    let cols = if axis == Axis::In { inputs } else { out };
    let block_len = [96, 64, 32].into_iter().find(|len| cols % len == 0).unwrap();
    let output = if embedding { 1 } else { 1 << out.trailing_zeros().min(5) };
    let blocks = RotationBlocks { input: 1 << inputs.trailing_zeros().min(5), output };
    let trellis = Trellis::new(Code::OneMad, 12, 3, block_len).unwrap();
    LayerQuantization { trellis, axis, rotation: rotated.then_some(blocks) }
}

/// Writes `source` with `coded` replaced by random codes.
pub fn write_packed(source: &ModelSource, coded: &[Coded], axis: Axis, rotated: bool, to: &Path) {
    let mut random = Words(7);
    let mut writer = ModelWriter::<trelliq_format::FormatError>::new(to, options()).unwrap();
    let mut entries = BTreeMap::new();
    for (path, shape) in coded {
        let entry = coding(path, *shape, axis, rotated);
        let [out, inputs] = *shape;
        let (rows, cols) = if entry.axis == Axis::In { (out, inputs) } else { (inputs, out) };
        let words = cols * 3 / 32;
        let mut add = |name: &str, dtype, shape: &[usize], bytes: Vec<u8>| {
            writer.add_bytes(&format!("{path}.{name}"), dtype, shape, bytes).unwrap();
        };
        add("weight", Dtype::U32, &[rows, words], random.bytes(rows * words));
        add("scales", Dtype::F16, &[rows], random.halves(rows, 0.05, 0.1));
        if rotated {
            // Layers that read the same input share their factors of it.
            let mut shared = Words(inputs as u64);
            add("su", Dtype::F16, &[inputs], shared.halves(inputs, 0.5, 1.0));
            add("sv", Dtype::F16, &[out], random.halves(out, -1.5, 1.0));
        }
        entries.insert(path.clone(), entry);
    }
    copy_rest(source, coded, &mut writer);
    let mut config = source.config().clone();
    config["quantization"] = QuantizationConfig::new(entries).to_json();
    writer.add_file("config.json", config.to_string().into_bytes()).unwrap();
    writer.finish(&mut |_| {}).unwrap();
}

pub fn options() -> WriterOptions {
    WriterOptions { overwrite: true, ..Default::default() }
}

/// Copies all tensors but those of coded layers; biases of coded layers stay.
pub fn copy_rest<'a>(source: &'a ModelSource, coded: &[Coded], writer: &mut ModelWriter<'a>) {
    let parts = ["weight", "scales", "su", "sv"];
    let replaced: BTreeSet<String> =
        coded.iter().flat_map(|(path, _)| parts.map(|part| format!("{path}.{part}"))).collect();
    for info in source.tensors().filter(|info| !replaced.contains(&info.name)) {
        writer.copy_tensor(source, &info.name).unwrap();
    }
}
