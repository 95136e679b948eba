//! `trelliq quantize`: from a model to packed weights.

use super::Switch;
use super::validate::{code, scale_rule};
use crate::calibration::WindowArgs;
use crate::output::{TextTable, print_json};
use crate::{progress::Stages, source};
use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trelliq_codec::{BITS, Code, STATE_BITS, ScaleRule};
use trelliq_format::ModelSource;
use trelliq_kernels::Axis;
use trelliq_model::Tokenizer;
use trelliq_quantize::{AxisChoice, Budget, HessianSource, Manifest, QuantizeOptions};

/// Code a model's linear layers
///
/// Codes the weights of every linear layer of MODEL and writes OUT, a model directory that the
/// other commands read. A run that was stopped, even killed, goes on where it was when the same
/// command is given again, and ends in the same bytes.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A directory of safetensors, a .gguf file or a repository id
    model: String,

    /// The directory to write
    out: PathBuf,

    /// Bits stored a weight (K), 1 to 8; 2.6 and the like give each layer the width that loses least at
    /// this average, which needs --calibration or --hessians
    #[arg(long, value_name = "K", default_value = "4", value_parser = average_bits)]
    bits: f64,

    /// Size of all tensors instead of --bits: widths that lose least within it; 1.2GB, 900MiB
    #[arg(long, value_name = "SIZE", conflicts_with = "bits", value_parser = byte_size)]
    size: Option<u64>,

    /// Bits of a trellis state (L), 4 to 16: more lose less and take twice the time each
    #[arg(long, value_name = "L", default_value_t = 12, value_parser = state_bits())]
    state_bits: u32,

    /// Function from state to weight; rand is a table for validation only
    #[arg(long, default_value = "1mad", value_parser = code())]
    code: Code,

    /// Dimension to code: 0 the outputs, 1 the inputs; auto is 0
    #[arg(long, default_value = "auto")]
    axis: AxisArg,

    /// Rotate weights by Hadamard blocks: off reads on plain decoders, but outliers cost far more
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    rotate: Switch,

    /// Weights of a block (T) [default: near 256, as the width allows]
    #[arg(long, value_name = "T")]
    block_len: Option<usize>,

    /// How a row's scale is found: baseline reproduces papers, grid is 5 times slower than tuned
    #[arg(long, value_name = "RULE", default_value = "tuned", value_parser = scale_rule())]
    scale_rule: ScaleRule,

    /// Viterbi passes a block
    #[arg(long, value_name = "N", default_value_t = trelliq_codec::MIN_PASSES)]
    passes: usize,

    /// Only code layers whose path matches [default: all linear layers]
    #[arg(long, value_name = "GLOB", value_delimiter = ',')]
    include: Vec<String>,

    /// Leave layers dense whose path matches, even where included
    #[arg(long, value_name = "GLOB", value_delimiter = ',')]
    exclude: Vec<String>,

    /// Code the output head as well, at so many bits
    #[arg(long, value_name = "K", value_parser = bits())]
    head_bits: Option<u32>,

    /// Code the token embedding as well, at so many bits
    #[arg(long, value_name = "K", value_parser = bits())]
    embed_bits: Option<u32>,

    /// Round with feedback, calibrated on a text (`default` for the bundled one; .jsonl with a `text` a
    /// line): loses far less at the same size, takes several times as long
    #[arg(long, value_name = "FILE", conflicts_with = "hessians")]
    calibration: Option<String>,

    #[command(flatten)]
    windows: WindowArgs,

    /// Round with feedback under the Hessians of this file, which `trelliq hessian` makes once for any
    /// number of bits
    #[arg(long, value_name = "FILE")]
    hessians: Option<PathBuf>,

    /// What is added to a Hessian's diagonal, as a share of its mean
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = damping)]
    damping: f64,

    /// Input channels coded before their errors are fed on: 1 loses least
    #[arg(long, value_name = "N", default_value = "1")]
    feedback_block: NonZeroUsize,

    /// Scale channels before they are rotated, by their energy and their input's power; needs Hessians
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    channel_scales: Switch,

    /// Seed of the rotations' signs
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = byte_size, help = SIZE_HELP)]
    max_shard_size: u64,

    /// Go on with a run that was stopped; off discards what it had done
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    resume: Switch,

    /// Replace OUT where it exists
    #[arg(long)]
    overwrite: bool,

    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
}

pub const SIZE_HELP: &str =
    "Start a new file past this size: bytes, or with K, M, G (powers of 1000) or KiB, MiB, GiB";

const AFTER_HELP: &str = "\
Paths are those of the model's tensors without `.weight`, for example
model.layers.0.self_attn.q_proj; in a glob * matches any run of characters, dots too.

OUT also gets trelliq_manifest.json: every option, the source's hashes, and each layer's error.
While it works, finished layers wait in OUT.partial. The number of threads never changes a byte.

Examples:
  trelliq quantize models/smollm2.gguf packed --bits 4
  trelliq quantize models/smollm2.gguf packed --bits 3 --calibration default --embed-bits 8
  trelliq quantize owner/name packed --bits 3 --state-bits 16 --embed-bits 6
  trelliq quantize dir packed --bits 2 --exclude '*.down_proj,*.layers.0.*'";

#[derive(Debug, Clone, Copy, ValueEnum)]
enum AxisArg {
    Auto,
    #[value(name = "0")]
    Out,
    #[value(name = "1")]
    In,
}

impl From<AxisArg> for AxisChoice {
    fn from(axis: AxisArg) -> Self {
        match axis {
            AxisArg::Auto => AxisChoice::Auto,
            AxisArg::Out => AxisChoice::Fixed(Axis::Out),
            AxisArg::In => AxisChoice::Fixed(Axis::In),
        }
    }
}

pub fn run(args: Args) -> Result<()> {
    let started = Instant::now();
    let source = source::open(&args.model)?;
    let resumed = args.resume == Switch::On && partial(&args.out).exists();
    let stages = Stages::default();
    let options = args.options(&source)?;
    let result =
        trelliq_quantize::quantize(&source, &args.out, &options, &|event| stages.on(event));
    stages.finish();
    let coding = stages.time("code").filter(|_| !resumed);
    let summary = Summary::new(&args.out, &result?, started.elapsed(), coding);
    if args.json { print_json(&summary) } else { summary.print() }
}

/// Where `trelliq_quantize` keeps the finished layers of a run.
fn partial(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

fn damping(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share >= 0.0 && share.is_finite() => Ok(share),
        _ => Err("a share is a number from 0 on".into()),
    }
}

impl Args {
    /// Where Hessians come from; the source is opened for its tokenizer.
    fn hessians(&self, source: &ModelSource) -> Result<Option<HessianSource>> {
        if let Some(file) = &self.hessians {
            return Ok(Some(HessianSource::File(file.clone())));
        }
        let Some(text) = &self.calibration else { return Ok(None) };
        let tokenizer = Tokenizer::from_files(source.sidecar_files(), source.config())?;
        let windows = self.windows.read(text, &tokenizer)?;
        Ok(Some(HessianSource::Collect { windows, vocab_limit: Some(tokenizer.vocab_size()) }))
    }

    fn budget(&self) -> Option<Budget> {
        match self.size {
            Some(bytes) => Some(Budget::TotalBytes(bytes)),
            None => (self.bits.fract() != 0.0).then_some(Budget::AverageBits(self.bits)),
        }
    }

    fn options(&self, source: &ModelSource) -> Result<QuantizeOptions> {
        Ok(QuantizeOptions {
            bits: self.bits as u32,
            budget: self.budget(),
            state_bits: self.state_bits,
            code: self.code,
            axis: self.axis.into(),
            rotate: self.rotate == Switch::On,
            block_len: self.block_len,
            scale_rule: self.scale_rule,
            passes: self.passes,
            include: self.include.clone(),
            exclude: self.exclude.clone(),
            head_bits: self.head_bits,
            embed_bits: self.embed_bits,
            hessians: self.hessians(source)?,
            damping: self.damping,
            feedback_block: self.feedback_block.get(),
            channel_scales: self.channel_scales == Switch::On,
            seed: self.seed,
            max_shard_bytes: self.max_shard_size,
            resume: self.resume == Switch::On,
            overwrite: self.overwrite,
        })
    }
}

/// What a run made of the model.
#[derive(Debug, Serialize)]
struct Summary {
    out: String,
    layers: usize,
    coded_weights: u64,
    /// Bits a coded weight, scales and rotations included.
    bits_per_coded_weight: f64,
    /// Bits a weight of the whole model.
    bits_per_weight: f64,
    /// Squared error of the coded layers over the sum of their squared weights.
    relative_error: f64,
    source_bytes: u64,
    bytes: u64,
    seconds: f64,
    /// Coded weights a second; null where an earlier run had coded some.
    weights_per_second: Option<f64>,
}

impl Summary {
    fn new(out: &Path, manifest: &Manifest, time: Duration, coding: Option<Duration>) -> Self {
        let totals = &manifest.totals;
        let bytes = totals.coded_bytes + totals.dense_bytes;
        let weights = totals.coded_weights + totals.dense_weights;
        Self {
            out: out.display().to_string(),
            layers: manifest.layers.len(),
            coded_weights: totals.coded_weights,
            bits_per_coded_weight: totals.bits_per_weight,
            bits_per_weight: 8.0 * bytes as f64 / weights.max(1) as f64,
            relative_error: totals.relative_error,
            source_bytes: manifest.source.iter().map(|file| file.bytes).sum(),
            bytes,
            seconds: time.as_secs_f64(),
            weights_per_second: coding.map(|time| totals.coded_weights as f64 / time.as_secs_f64()),
        }
    }

    fn print(&self) -> Result<()> {
        let mut table = TextTable::new(&["<quantized", ""]);
        let mut row = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
        row("coded layers", self.layers.to_string());
        row("coded weights", self.coded_weights.to_string());
        row("bits a coded weight", format!("{:.3}", self.bits_per_coded_weight));
        row("bits a weight, whole model", format!("{:.3}", self.bits_per_weight));
        row("relative squared error", format!("{:.6}", self.relative_error));
        row("bytes before", self.source_bytes.to_string());
        row("bytes after", self.bytes.to_string());
        row("seconds", format!("{:.1}", self.seconds));
        let rate = self.weights_per_second.map(|rate| format!("{:.2} M", rate / 1e6));
        row("weights a second", rate.unwrap_or_else(|| "-".to_owned()));
        table.print()
    }
}

fn average_bits(text: &str) -> Result<f64, String> {
    let range = f64::from(*BITS.start())..=f64::from(*BITS.end());
    match text.parse::<f64>() {
        Ok(bits) if range.contains(&bits) => Ok(bits),
        _ => Err(format!("a number from {} to {}", range.start(), range.end())),
    }
}

fn bits() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(*BITS.start())..=i64::from(*BITS.end()))
}

fn state_bits() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(*STATE_BITS.start())..=i64::from(*STATE_BITS.end()))
}

/// Bytes: a number, perhaps with a fraction, and perhaps K, M or G (powers of 1000) or Ki, Mi, Gi
/// (powers of 1024), perhaps with a B.
pub fn byte_size(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let number = upper.strip_suffix('B').unwrap_or(&upper);
    let (number, base) = match number.strip_suffix('I') {
        Some(number) if number.ends_with(['K', 'M', 'G']) => (number, 1024u64),
        _ => (number, 1000),
    };
    let unit = [('K', base), ('M', base.pow(2)), ('G', base.pow(3))]
        .into_iter()
        .find_map(|(name, unit)| number.strip_suffix(name).map(|number| (number, unit)));
    let (number, unit) = unit.unwrap_or((number, 1));
    let bytes = number.trim().parse::<f64>().map(|n| (n * unit as f64).round());
    match bytes {
        Ok(bytes) if (1.0..9e15).contains(&bytes) => Ok(bytes as u64),
        _ => Err("a size is like 500M, 5GB or 1.2GiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(byte_size("5GB"), Ok(5_000_000_000));
        assert_eq!(byte_size("200m"), Ok(200_000_000));
        assert_eq!(byte_size("123"), Ok(123));
        assert_eq!(byte_size("1.5k"), Ok(1_500));
        assert_eq!(byte_size("1.25GiB"), Ok(1_342_177_280));
        for wrong in ["", "G", "0", "-1", "1T", "5i", "nanM", "99999999999G"] {
            assert!(byte_size(wrong).is_err(), "{wrong}");
        }
    }
}
