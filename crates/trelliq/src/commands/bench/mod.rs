//! `trelliq bench`: how fast kernels, encoder and models are on this machine.

mod encoder;
mod layers;
mod machine;
mod model;
mod plot;
mod row;
mod timer;

use super::{Bits, Numeric, Repack, settings_help};
use crate::output::{TextTable, print_json};
use crate::progress;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use machine::Machine;
use row::{Row, What};
use std::path::PathBuf;
use std::time::Duration;
use trelliq_kernels::{Activations, Axis, Isa, KernelOptions, Numerics};
use trelliq_model::DeviceChoice;

/// Measure the speed of kernels, encoder and models
///
/// Times packed linear layers with random codes at the shapes of real models, the encoder and, with
/// MODEL, prompts and answers; beside each figure stands what it is compared with, of the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A model whose prompt and decode rates to measure: a directory, .gguf file or repository id
    model: Option<String>,

    /// What to measure [default: all; prompt and decode need MODEL]
    #[arg(long, value_delimiter = ',')]
    what: Vec<What>,

    /// Bits stored a weight (K): numbers and ranges
    #[arg(long, value_delimiter = ',', value_name = "K", default_value = "2-4", value_parser = Bits::parse)]
    bits: Vec<Bits>,

    /// Bits of a trellis state (L)
    #[arg(long, value_delimiter = ',', value_name = "L", default_value = "12")]
    state_bits: Vec<u32>,

    /// Inputs and outputs of a layer
    #[arg(long, value_delimiter = ',', value_name = "INxOUT", default_value = "4096x4096", value_parser = shape)]
    shape: Vec<(usize, usize)>,

    /// Rows of x that share a decoded weight
    #[arg(long, value_delimiter = ',', value_name = "M", default_value = "1,8")]
    m: Vec<usize>,

    /// Rows of x of a prefill, and tokens of a prompt
    #[arg(long, value_delimiter = ',', value_name = "M", default_value = "512")]
    prefill_m: Vec<usize>,

    /// What activations are multiplied in [default: what this machine runs]
    #[arg(long, value_delimiter = ',')]
    numerics: Vec<Multiply>,

    /// Whether one layer is run again and again, or so many in turn that each comes from memory
    #[arg(long, value_delimiter = ',', default_value = "cache")]
    from: Vec<From>,

    /// Thread counts [default: that of --threads]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    on_threads: Vec<usize>,

    /// Seconds a figure
    #[arg(long, value_name = "S", default_value_t = 0.3)]
    seconds: f64,

    #[command(flatten)]
    numeric: Numeric,

    /// Also draw the layers' rates
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    /// Print one JSON object a row, each on its line
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = concat!(
    "\
What: scatter multiplies by a layer coded along its outputs (axis 0, the default of quantize), reduce by
one coded along its inputs (axis 1), gate_up by two layers of a gated block; with more rows of x than
the crossover a prefill decodes tiles for a matrix multiply. Rates count every weight once for each row
of x. A value is the median of repetitions, best the fastest of them. GB/s are bytes of codes, compared
with this machine's memory bandwidth; a prefill is compared with the same product of dense f32 (gemm).

",
    settings_help!(),
    "
Examples:
  trelliq bench
  trelliq bench --what scatter --bits 1-8 --m 1,2,4,8 --on-threads 1 --plot scatter.svg
  trelliq bench --what scatter --from cache,memory --numerics int,f32 --json
  trelliq bench packed --what prompt,decode"
);

/// How activations are multiplied by weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Multiply {
    Int,
    F32,
    /// f32, and weights rounded to bf16
    Exact,
}

/// Where weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum From {
    Cache,
    Memory,
}

/// A layer or an encoder to measure.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub what: What,
    pub bits: u32,
    pub state_bits: u32,
    pub axis: Axis,
    pub inputs: usize,
    pub outputs: usize,
    pub m: usize,
    pub numerics: Multiply,
    pub from: From,
}

pub fn run(args: Args) -> Result<()> {
    let kernel = args.numeric.runtime()?.kernel;
    args.check()?;
    let counts = match args.on_threads.as_slice() {
        [] => vec![rayon::current_num_threads()],
        counts => counts.to_vec(),
    };
    let model = args.model.as_deref().filter(|_| args.wants_model());
    let model =
        model.map(|spec| crate::source::load(spec, args.numeric.placement())).transpose()?;
    let cases = args.cases(&kernel);
    let bar = progress::bar("measuring", (cases.len() * counts.len()) as u64);
    let mut rows = Vec::new();
    for threads in counts {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        pool.install(|| -> Result<()> {
            let machine = Machine::measure();
            for case in &cases {
                bar.set_message(case.to_string());
                rows.push(args.measure(case, &kernel, &machine)?);
                bar.inc(1);
            }
            if let Some(model) = &model {
                rows.extend(model::measure(model, &args, &machine)?);
            }
            Ok(())
        })?;
    }
    bar.finish_and_clear();
    if let Some(path) = &args.plot {
        plot::write(path, &rows).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json { rows.iter().try_for_each(print_json) } else { print_table(&rows) }
}

impl Args {
    fn check(&self) -> Result<()> {
        if self.model.is_none() && self.what.iter().any(|what| what.of_model()) {
            bail!("prompt and decode need a MODEL");
        }
        let on_gpu = matches!(self.numeric.device, Some(DeviceChoice::Cuda(_)));
        if on_gpu && self.model.is_none() {
            bail!("on a GPU whole models are measured: give a MODEL");
        }
        if on_gpu && self.what.iter().any(|what| !what.of_model()) {
            bail!("--device cuda measures prompt and decode; layers and encoder are the CPU's");
        }
        if self.m.iter().chain(&self.prefill_m).chain(&self.on_threads).any(|&n| n == 0) {
            bail!("rows of x and threads are at least 1");
        }
        Ok(())
    }

    fn wants(&self, what: What) -> bool {
        let only_models = matches!(self.numeric.device, Some(DeviceChoice::Cuda(_)));
        self.what.contains(&what) || self.what.is_empty() && (what.of_model() || !only_models)
    }

    fn wants_model(&self) -> bool {
        self.wants(What::Prompt) || self.wants(What::Decode)
    }

    fn budget(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.clamp(1e-3, 3600.0))
    }

    fn multiply(&self, kernel: &KernelOptions) -> Vec<Multiply> {
        if !self.numerics.is_empty() {
            return self.numerics.clone();
        }
        vec![match (kernel.numerics, kernel.activations.on(kernel.isa)) {
            (Numerics::Exact, _) => Multiply::Exact,
            (Numerics::Fast, Activations::Int) => Multiply::Int,
            (Numerics::Fast, _) => Multiply::F32,
        }]
    }

    /// Every combination that is asked for, except those with K >= L.
    fn cases(&self, kernel: &KernelOptions) -> Vec<Case> {
        let mut cases = Vec::new();
        let bits = || self.bits.iter().flat_map(Bits::each);
        for &state_bits in &self.state_bits {
            for (what, axis) in What::LAYERS.into_iter().filter(|(what, _)| self.wants(*what)) {
                let prefill = what == What::Prefill;
                let rows = if prefill { &self.prefill_m } else { &self.m };
                let numerics = if prefill { vec![Multiply::F32] } else { self.multiply(kernel) };
                for &(inputs, outputs) in &self.shape {
                    for &from in &self.from {
                        for &numerics in &numerics {
                            for &m in rows {
                                cases.extend(bits().filter(|&k| k < state_bits).map(|bits| Case {
                                    what,
                                    bits,
                                    state_bits,
                                    axis,
                                    inputs,
                                    outputs,
                                    m,
                                    numerics,
                                    from,
                                }));
                            }
                        }
                    }
                }
            }
            if self.wants(What::Encode) {
                let case = |bits| Case::encoder(bits, state_bits);
                cases.extend(bits().filter(|&k| k < state_bits).map(case));
            }
        }
        cases
    }

    fn measure(&self, case: &Case, kernel: &KernelOptions, machine: &Machine) -> Result<Row> {
        match case.what {
            What::Encode => encoder::measure(case, self.budget()),
            _ => layers::measure(
                case,
                kernel,
                machine,
                self.numeric.repack != Repack::Off,
                self.budget(),
            ),
        }
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self { what, bits, state_bits, inputs, outputs, m, .. } = self;
        write!(f, "{} L={state_bits} K={bits} {inputs}x{outputs} M={m}", what.name())
    }
}

/// What a row says of the machine.
fn isa(kernel: &KernelOptions) -> &'static str {
    Isa::chosen(kernel.isa).name()
}

fn shape(text: &str) -> Result<(usize, usize), String> {
    let sizes = text.split_once('x').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    sizes
        .filter(|&(inputs, outputs): &(usize, usize)| inputs > 0 && outputs > 0)
        .ok_or_else(|| "a shape is inputs x outputs, as in 4096x14336".to_owned())
}

fn print_table(rows: &[Row]) -> Result<()> {
    let mut table = TextTable::new(&[
        "<what",
        "<device",
        "axis",
        "in",
        "out",
        "L",
        "K",
        "M",
        "<numerics",
        "<from",
        "threads",
        "value",
        "best",
        "<unit",
        "GB/s",
        "<compared with",
        "ratio",
    ]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for row in rows {
        let compared = row.compared_with.as_ref();
        table.row(vec![
            row.what.name().to_owned(),
            row.device.to_owned(),
            or_dash(row.axis.map(|axis| axis.to_string())),
            or_dash(row.cols.map(|n| n.to_string())),
            or_dash(row.rows.map(|n| n.to_string())),
            or_dash(row.state_bits.map(|n| n.to_string())),
            or_dash(row.bits.map(|n| n.to_string())),
            row.m.to_string(),
            row.numerics.to_owned(),
            or_dash(row.from.map(|from| format!("{from:?}").to_lowercase())),
            row.threads.to_string(),
            format!("{:.3}", row.value),
            format!("{:.3}", row.best),
            row.unit.to_owned(),
            or_dash(row.coded_gb_per_s.map(|rate| format!("{rate:.2}"))),
            or_dash(
                compared.map(|other| format!("{} {:.3} {}", other.name, other.value, other.unit)),
            ),
            or_dash(compared.map(|other| format!("{:.3}", other.ratio))),
        ]);
    }
    table.print()
}

#[cfg(test)]
mod tests {
    use super::shape;

    #[test]
    fn shapes() {
        assert_eq!(shape("576x1536"), Ok((576, 1536)));
        for odd in ["576", "0x3", "3x", "axb", "-1x2", "1x2x3"] {
            assert!(shape(odd).is_err(), "{odd}");
        }
    }
}
