//! `config.json`'s `quantization`: which layers are coded, and how (`docs/spec/format.md`).

use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use trelliq_codec::{Code, CodecError, Trellis};
use trelliq_kernels::Axis;

const MODE: &str = "trellis";
const FORMAT: &str = "trellis_format";
/// The plain format, and the one with rotations.
const FORMATS: [u64; 2] = [1, 2];

/// What can be wrong with a `quantization` object. Keys are written as paths into it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizationError {
    #[error("`{key}` is not a key that this version knows")]
    UnknownKey { key: String },
    #[error("`{key}` is {value}: expected {expected}")]
    Value { key: String, value: String, expected: &'static str },
    #[error("`{key}` is missing, and the model-wide defaults do not give it")]
    Missing { key: String },
    #[error("`{key}` needs `trellis_format` 2")]
    NeedsFormat2 { key: String },
    #[error("the layer `{layer}` cannot be coded so: {source}")]
    Codec { layer: String, source: CodecError },
}

/// Hadamard blocks of a coded layer's rotation; 1 means no rotation on that side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RotationBlocks {
    pub input: usize,
    pub output: usize,
}

/// How one linear layer is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerQuantization {
    pub trellis: Trellis,
    pub axis: Axis,
    pub rotation: Option<RotationBlocks>,
}

/// How a model is coded: one entry a coded layer, all others are dense.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QuantizationConfig {
    layers: BTreeMap<String, LayerQuantization>,
    dense: BTreeSet<String>,
}

impl QuantizationConfig {
    /// From the coded layers by their paths, for example `model.layers.0.mlp.gate_proj`.
    pub fn new(layers: BTreeMap<String, LayerQuantization>) -> Self {
        Self { layers, dense: BTreeSet::new() }
    }

    /// Every coded layer.
    pub fn layers(&self) -> &BTreeMap<String, LayerQuantization> {
        &self.layers
    }

    /// How the layer at `path` is coded; `None` when it is dense.
    pub fn layer(&self, path: &str) -> Option<&LayerQuantization> {
        self.layers.get(path)
    }

    /// 2 when any layer is rotated, else 1.
    pub fn trellis_format(&self) -> u64 {
        if self.layers.values().any(|layer| layer.rotation.is_some()) { 2 } else { 1 }
    }

    /// The `quantization` of a whole `config.json`; `None` where it has none.
    pub fn from_model_config(config: &Value) -> Result<Option<Self>, QuantizationError> {
        match config.get("quantization") {
            None | Some(Value::Null) => Ok(None),
            Some(quantization) => Self::from_json(quantization).map(Some),
        }
    }

    /// Reads a `quantization` object. Keys and values that are not known are refused by name.
    pub fn from_json(quantization: &Value) -> Result<Self, QuantizationError> {
        let Some(object) = quantization.as_object() else {
            return Err(unexpected("quantization", quantization, "an object"));
        };
        let format = format_number(object)?;
        let defaults = Fields::read("quantization", object, Level::Defaults)?;
        // Other quantizations have these too, so without a mode it is not known whose they are.
        if !defaults.mode
            && ["bits", "group_size", "trellis"].iter().any(|k| object.contains_key(*k))
        {
            return Err(QuantizationError::Missing { key: key("quantization", "mode") });
        }
        let mut config = Self::default();
        for (path, entry) in object.iter().filter(|(key, _)| !Level::Defaults.knows(key)) {
            match entry {
                Value::Bool(false) => {
                    config.dense.insert(path.clone());
                }
                Value::Object(entry) => {
                    let layer = read_layer(path, entry, &defaults, format)?;
                    config.layers.insert(path.clone(), layer);
                }
                // Only layers have objects or `false`, so this is an option that is not known.
                _ => {
                    return Err(QuantizationError::UnknownKey { key: key("quantization", path) });
                }
            }
        }
        Ok(config)
    }

    /// The `quantization` object: equal configurations give equal bytes. The model-wide defaults
    /// are the most frequent coding, the first of them by path among equally frequent ones.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        if let Some((trellis, axis)) = self.most_frequent() {
            write_layer(&mut object, &trellis, axis);
        }
        object.insert(FORMAT.to_owned(), self.trellis_format().into());
        for path in self.layers.keys().chain(&self.dense).collect::<BTreeSet<_>>() {
            let entry =
                self.layers.get(path).map_or(Value::Bool(false), LayerQuantization::to_json);
            object.insert(path.clone(), entry);
        }
        Value::Object(object)
    }

    fn most_frequent(&self) -> Option<(Trellis, Axis)> {
        let mut counts: Vec<((Trellis, Axis), usize)> = Vec::new();
        for layer in self.layers.values() {
            let coding = (layer.trellis, layer.axis);
            match counts.iter_mut().find(|(known, _)| *known == coding) {
                Some((_, count)) => *count += 1,
                None => counts.push((coding, 1)),
            }
        }
        // `max_by_key` keeps the last of equals, so the order is turned around.
        counts.into_iter().rev().max_by_key(|&(_, count)| count).map(|(coding, _)| coding)
    }
}

impl LayerQuantization {
    /// The layer's entry, complete without any defaults.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        write_layer(&mut object, &self.trellis, self.axis);
        if let Some(RotationBlocks { input, output }) = self.rotation {
            object.insert("rotation".to_owned(), json!({ "in": input, "out": output }));
        }
        Value::Object(object)
    }
}

fn write_layer(object: &mut Map<String, Value>, trellis: &Trellis, axis: Axis) {
    object.insert("mode".to_owned(), MODE.into());
    object.insert("bits".to_owned(), trellis.bits().into());
    object.insert("group_size".to_owned(), trellis.block_len().into());
    let (state_bits, code, axis) = (trellis.state_bits(), trellis.code().name(), axis as u8);
    object.insert("trellis".to_owned(), json!({ "L": state_bits, "code": code, "axis": axis }));
}

/// Where a set of keys stands.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    Defaults,
    Layer,
}

impl Level {
    fn knows(self, key: &str) -> bool {
        match key {
            "mode" | "bits" | "group_size" | "trellis" => true,
            FORMAT => self == Level::Defaults,
            "rotation" => self == Level::Layer,
            _ => false,
        }
    }
}

/// The options of one object, each where it is given.
#[derive(Default)]
struct Fields {
    mode: bool,
    bits: Option<u32>,
    group_size: Option<usize>,
    state_bits: Option<u32>,
    code: Option<Code>,
    axis: Option<Axis>,
    rotation: Option<RotationBlocks>,
}

impl Fields {
    fn read(
        at: &str,
        object: &Map<String, Value>,
        level: Level,
    ) -> Result<Self, QuantizationError> {
        let mut fields = Self::default();
        for (name, value) in object.iter().filter(|(name, _)| level.knows(name)) {
            let at = key(at, name);
            match name.as_str() {
                "mode" if value == MODE => fields.mode = true,
                "mode" => return Err(unexpected(&at, value, "\"trellis\"")),
                "bits" => fields.bits = Some(number(&at, value)?),
                "group_size" => fields.group_size = Some(number(&at, value)?),
                "trellis" => fields.read_trellis(&at, value)?,
                "rotation" => fields.rotation = Some(read_rotation(&at, value)?),
                _ => {}
            }
        }
        Ok(fields)
    }

    fn read_trellis(&mut self, at: &str, value: &Value) -> Result<(), QuantizationError> {
        for (name, value) in object(at, value)? {
            let at = key(at, name);
            match name.as_str() {
                "L" => self.state_bits = Some(number(&at, value)?),
                "code" => {
                    let code = value.as_str().and_then(|name| name.parse().ok());
                    let known = "one of \"1mad\", \"3inst\", \"rand\"";
                    self.code = Some(code.ok_or_else(|| unexpected(&at, value, known))?);
                }
                "axis" => {
                    self.axis = match value.as_u64() {
                        Some(0) => Some(Axis::Out),
                        Some(1) => Some(Axis::In),
                        _ => return Err(unexpected(&at, value, "0 or 1")),
                    }
                }
                _ => return Err(QuantizationError::UnknownKey { key: at }),
            }
        }
        Ok(())
    }
}

fn read_layer(
    path: &str,
    entry: &Map<String, Value>,
    defaults: &Fields,
    format: u64,
) -> Result<LayerQuantization, QuantizationError> {
    let at = key("quantization", path);
    if let Some(name) = entry.keys().find(|name| !Level::Layer.knows(name)) {
        return Err(QuantizationError::UnknownKey { key: key(&at, name) });
    }
    let own = Fields::read(&at, entry, Level::Layer)?;
    let missing = |name: &str| QuantizationError::Missing { key: key(&at, name) };
    if !own.mode && !defaults.mode {
        return Err(missing("mode"));
    }
    let code = own.code.or(defaults.code).ok_or_else(|| missing("trellis.code"))?;
    let axis = own.axis.or(defaults.axis).ok_or_else(|| missing("trellis.axis"))?;
    let bits = own.bits.or(defaults.bits).ok_or_else(|| missing("bits"))?;
    let state_bits = own.state_bits.or(defaults.state_bits);
    let state_bits = state_bits.ok_or_else(|| missing("trellis.L"))?;
    let block_len = own.group_size.or(defaults.group_size);
    let block_len = block_len.ok_or_else(|| missing("group_size"))?;
    if own.rotation.is_some() && format < 2 {
        return Err(QuantizationError::NeedsFormat2 { key: key(&at, "rotation") });
    }
    let trellis = Trellis::new(code, state_bits, bits, block_len)
        .map_err(|source| QuantizationError::Codec { layer: path.to_owned(), source })?;
    Ok(LayerQuantization { trellis, axis, rotation: own.rotation })
}

fn read_rotation(at: &str, value: &Value) -> Result<RotationBlocks, QuantizationError> {
    let (mut input, mut output) = (None, None);
    for (name, value) in object(at, value)? {
        let at = key(at, name);
        let side = match name.as_str() {
            "in" => &mut input,
            "out" => &mut output,
            _ => return Err(QuantizationError::UnknownKey { key: at }),
        };
        let block: usize = number(&at, value)?;
        if !block.is_power_of_two() {
            return Err(unexpected(&at, value, "a power of two"));
        }
        *side = Some(block);
    }
    let missing = |name| QuantizationError::Missing { key: key(at, name) };
    let input = input.ok_or_else(|| missing("in"))?;
    Ok(RotationBlocks { input, output: output.ok_or_else(|| missing("out"))? })
}

/// The version of the format: 1 where none is named.
fn format_number(object: &Map<String, Value>) -> Result<u64, QuantizationError> {
    let Some(value) = object.get(FORMAT) else {
        return Ok(FORMATS[0]);
    };
    let known = value.as_u64().filter(|format| FORMATS.contains(format));
    known.ok_or_else(|| unexpected(&key("quantization", FORMAT), value, "1 or 2"))
}

fn object<'a>(at: &str, value: &'a Value) -> Result<&'a Map<String, Value>, QuantizationError> {
    value.as_object().ok_or_else(|| unexpected(at, value, "an object"))
}

fn number<N: TryFrom<u64>>(at: &str, value: &Value) -> Result<N, QuantizationError> {
    let number = value.as_u64().and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| unexpected(at, value, "a whole number"))
}

fn key(at: &str, name: &str) -> String {
    format!("{at}.{name}")
}

fn unexpected(key: &str, value: &Value, expected: &'static str) -> QuantizationError {
    // A hostile value may be of any size; an error message is not.
    let mut value = value.to_string();
    if let Some((end, _)) = value.char_indices().nth(80) {
        value.truncate(end);
        value.push('…');
    }
    QuantizationError::Value { key: key.to_owned(), value, expected }
}
