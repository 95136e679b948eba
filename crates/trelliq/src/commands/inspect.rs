//! `trelliq inspect`: what a model directory or file holds.

use crate::output::{TextTable, print_json};
use crate::source;
use anyhow::{Context, Result};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fs;
use trelliq_format::{ModelSource, TensorInfo, load_packed};
use trelliq_kernels::{Axis, PackedMatrix};
use trelliq_quantize::{MANIFEST_FILE, Manifest};

/// List what a model holds
///
/// One row a coded layer or dense tensor, for packed and dense models and GGUF files alike. Coded
/// layers are opened and checked as `run` would.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A directory of safetensors, a .gguf file or a repository id
    model: String,

    /// Print one JSON object: `tensors`, an entry a row, and `total`
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Columns: type is a code (1mad, 3inst) or the dtype of a dense tensor, shape is [out, in] for linear
layers, L the bits of a state, T the weights of a block, axis the coded dimension (0 outputs, 1
inputs), rotation the Hadamard blocks of the inputs and outputs, error the squared error over the
sum of squared weights, from the manifest that `quantize` leaves. bits counts scales and rotations.
`run` copies codes into the order that kernels read (--repack), which takes the memory shown below them.

Examples:
  trelliq inspect packed
  trelliq inspect packed --json | jq '.tensors | map(select(.relative_error > 0.01)) | .[].path'";

/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    path: String,
    shape: Vec<usize>,
    r#type: String,
    /// Stored bits a weight; of a coded layer with its scales and channel factors.
    bits_per_weight: f64,
    bits: Option<u32>,
    state_bits: Option<u32>,
    block_len: Option<usize>,
    axis: Option<u8>,
    rotation: Option<[usize; 2]>,
    weights: usize,
    bytes: usize,
    /// Memory that the copy takes which `run` makes of the codes (`--repack`); 0 for what is dense.
    repacked_bytes: usize,
    relative_error: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Total {
    weights: usize,
    bytes: usize,
    bits_per_weight: f64,
    coded_weights: usize,
    coded_bytes: usize,
    repacked_bytes: usize,
    relative_error: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    trellis_format: Option<u64>,
    tensors: Vec<Row>,
    total: Total,
}

pub fn run(args: Args) -> Result<()> {
    let report = report(&args.model, &source::open(&args.model)?)?;
    if args.json { print_json(&report) } else { print_table(&report) }
}

fn report(model: &str, source: &ModelSource) -> Result<Report> {
    let manifest = manifest(source)?;
    let mut tensors = Vec::new();
    let mut parts = BTreeSet::new();
    for path in source.quantization().iter().flat_map(|q| q.layers().keys()) {
        let names = ["weight", "scales", "su", "sv"].map(|part| format!("{path}.{part}"));
        tensors.push(coded_row(source, path, &names, manifest.as_ref())?);
        parts.extend(names);
    }
    tensors.extend(source.tensors().filter(|info| !parts.contains(&info.name)).map(dense_row));
    tensors.sort_by(|a, b| natural_order(&a.path, &b.path));
    let total = Total::new(&tensors, manifest.as_ref());
    let trellis_format = source.quantization().map(|q| q.trellis_format());
    Ok(Report { model: model.to_owned(), trellis_format, tensors, total })
}

/// The manifest that `quantize` leaves beside a model; another engine's model has none.
fn manifest(source: &ModelSource) -> Result<Option<Manifest>> {
    let path = source.root().join(MANIFEST_FILE);
    if source.quantization().is_none() || !path.exists() {
        return Ok(None);
    }
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let manifest = serde_json::from_slice(&bytes);
    manifest.map(Some).with_context(|| format!("{} is not a manifest", path.display()))
}

fn coded_row(
    source: &ModelSource,
    path: &str,
    names: &[String],
    manifest: Option<&Manifest>,
) -> Result<Row> {
    let layer = load_packed(source, path, None)?;
    let trellis = layer.matrix.trellis();
    let bytes = names.iter().filter_map(|name| source.info(name)).map(TensorInfo::bytes).sum();
    let shape = vec![layer.matrix.out_features(), layer.matrix.in_features()];
    let weights = shape.iter().product();
    let (rows, cols) = (layer.matrix.rows(), layer.matrix.cols());
    let repacked_bytes = PackedMatrix::repacked_bytes(trellis, layer.matrix.axis(), rows, cols);
    Ok(Row {
        path: path.to_owned(),
        shape,
        r#type: trellis.code().to_string(),
        bits_per_weight: bits_per_weight(bytes, weights),
        bits: Some(trellis.bits()),
        state_bits: Some(trellis.state_bits()),
        block_len: Some(trellis.block_len()),
        axis: Some(match layer.matrix.axis() {
            Axis::Out => 0,
            Axis::In => 1,
        }),
        rotation: layer.rotation.map(|rotation| [rotation.in_block(), rotation.out_block()]),
        weights,
        bytes,
        repacked_bytes,
        relative_error: manifest.and_then(|m| m.layers.get(path)).map(|l| l.relative_error),
    })
}

fn dense_row(info: &TensorInfo) -> Row {
    let (weights, bytes) = (info.elements(), info.bytes());
    Row {
        path: info.name.clone(),
        shape: info.shape.clone(),
        r#type: info.dtype.to_string(),
        bits_per_weight: bits_per_weight(bytes, weights),
        bits: None,
        state_bits: None,
        block_len: None,
        axis: None,
        rotation: None,
        weights,
        bytes,
        repacked_bytes: 0,
        relative_error: None,
    }
}

fn bits_per_weight(bytes: usize, weights: usize) -> f64 {
    8.0 * bytes as f64 / weights.max(1) as f64
}

impl Total {
    fn new(rows: &[Row], manifest: Option<&Manifest>) -> Self {
        let sum = |of: fn(&Row) -> usize, coded: bool| -> usize {
            rows.iter().filter(|row| !coded || row.bits.is_some()).map(of).sum()
        };
        let (weights, bytes) = (sum(|row| row.weights, false), sum(|row| row.bytes, false));
        Self {
            weights,
            bytes,
            bits_per_weight: bits_per_weight(bytes, weights),
            coded_weights: sum(|row| row.weights, true),
            coded_bytes: sum(|row| row.bytes, true),
            repacked_bytes: sum(|row| row.repacked_bytes, true),
            relative_error: manifest.map(|manifest| manifest.totals.relative_error),
        }
    }
}

fn print_table(report: &Report) -> Result<()> {
    let mut table = TextTable::new(&[
        "<path", "<shape", "<type", "bits", "L", "T", "axis", "rotation", "bytes", "error",
    ]);
    fn or_dash(value: Option<impl ToString>) -> String {
        value.map_or_else(|| "-".to_owned(), |value| value.to_string())
    }
    let error = |error: Option<f64>| or_dash(error.map(|error| format!("{error:.5}")));
    for row in &report.tensors {
        table.row(vec![
            row.path.clone(),
            row.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x "),
            row.r#type.clone(),
            format!("{:.3}", row.bits_per_weight),
            or_dash(row.state_bits),
            or_dash(row.block_len),
            or_dash(row.axis),
            or_dash(row.rotation.map(|[input, output]| format!("{input}/{output}"))),
            row.bytes.to_string(),
            error(row.relative_error),
        ]);
    }
    let total = &report.total;
    let mut summary = |name: &str, weights: usize, bytes: usize, relative_error: Option<f64>| {
        let mut cells = vec!["-".to_owned(); 10];
        cells[0] = name.to_owned();
        cells[1] = format!("{weights} weights");
        cells[3] = format!("{:.3}", bits_per_weight(bytes, weights));
        cells[8] = bytes.to_string();
        cells[9] = error(relative_error);
        table.row(cells);
    };
    if total.coded_weights > 0 {
        summary("(coded)", total.coded_weights, total.coded_bytes, total.relative_error);
        summary("(codes in the order of kernels)", total.coded_weights, total.repacked_bytes, None);
    }
    summary("(all)", total.weights, total.bytes, None);
    table.print()
}

/// Like text, but runs of digits compare as numbers: layer 2 stands before layer 10.
fn natural_order(a: &str, b: &str) -> Ordering {
    let pieces = |text: &str| -> Vec<(bool, u64, String)> {
        let runs = text.as_bytes().chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
        let piece = |run: &[u8]| {
            let run = String::from_utf8_lossy(run).into_owned();
            (!run.starts_with(|c: char| c.is_ascii_digit()), run.parse().unwrap_or(0), run)
        };
        runs.map(piece).collect()
    };
    pieces(a).cmp(&pieces(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_stand_in_the_order_of_their_numbers() {
        let mut paths = ["layers.10.a", "layers.2.b", "layers.2.a", "embed", "norm"];
        paths.sort_by(|a, b| natural_order(a, b));
        assert_eq!(paths, ["embed", "layers.2.a", "layers.2.b", "layers.10.a", "norm"]);
    }
}
