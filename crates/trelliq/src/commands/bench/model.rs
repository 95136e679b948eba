//! A whole model: tokens a second of prompts and of answers.

use super::machine::Machine;
use super::row::{Comparison, Row, What};
use super::timer::{Times, time};
use super::{Args, isa};
use crate::source::Loaded;
use anyhow::Result;
use trelliq_format::{ModelSource, TensorInfo};
use trelliq_kernels::{Activations, Numerics};
use trelliq_model::{KvCache, Logits, Model, RuntimeOptions, SequenceStep};

/// Tokens that an answer starts after.
const BEFORE: usize = 64;

pub fn measure(loaded: &Loaded, args: &Args, machine: &Machine) -> Result<Vec<Row>> {
    let runtime = args.numeric.runtime()?;
    let mut rows = Vec::new();
    if args.wants(What::Prompt) {
        for &tokens in &args.prefill_m {
            let prompt = prompt(&loaded.model, tokens);
            let times = time(args.budget(), || {
                step(&loaded.model, &mut loaded.model.new_cache(), &prompt, &runtime)
            })?;
            rows.push(row(&loaded.model, What::Prompt, tokens, times, &runtime));
        }
    }
    if args.wants(What::Decode) {
        let mut cache = loaded.model.new_cache();
        let prompt = prompt(&loaded.model, BEFORE);
        step(&loaded.model, &mut cache, &prompt, &runtime)?;
        let next = prompt[..1].to_vec();
        let times = time(args.budget(), || {
            if cache.len() > 2 * BEFORE {
                cache.truncate(BEFORE);
            }
            step(&loaded.model, &mut cache, &next, &runtime)
        })?;
        let mut row = row(&loaded.model, What::Decode, 1, times, &runtime);
        let bytes = bytes_a_token(&loaded.source) as f64;
        let read = bytes / times.median / 1e9;
        let bandwidth = loaded.model.gpu_bandwidth()?.unwrap_or(machine.bandwidth);
        row.coded_gb_per_s = Some(read);
        row.compared_with = Some(Comparison {
            name: "memory",
            value: bandwidth,
            unit: "GB/s",
            ratio: read / bandwidth,
        });
        rows.push(row);
    }
    Ok(rows)
}

/// Bytes of weights that a token reads: all but an embedding that is not the head too.
fn bytes_a_token(source: &ModelSource) -> usize {
    let untied = source.tensors_under("lm_head").next().is_some();
    let read = |name: &str| !(untied && name.contains("embed_tokens"));
    source.tensors().filter(|info| read(&info.name)).map(TensorInfo::bytes).sum()
}

/// Tokens from all over the vocabulary.
fn prompt(model: &Model, tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|i| i.wrapping_mul(2_654_435_761) % model.vocab() as u32).collect()
}

fn step(
    model: &Model,
    cache: &mut KvCache,
    tokens: &[u32],
    runtime: &RuntimeOptions,
) -> Result<()> {
    model.forward(&mut [SequenceStep { cache, tokens }], Logits::Last, runtime)?;
    Ok(())
}

/// A step of `tokens` tokens of one sequence.
fn row(model: &Model, what: What, tokens: usize, times: Times, runtime: &RuntimeOptions) -> Row {
    let on_gpu = model.gpu_name().is_some();
    let threads = if on_gpu { 1 } else { rayon::current_num_threads() };
    let kernel = &runtime.kernel;
    let activations = if on_gpu { kernel.activations } else { kernel.activations.on(kernel.isa) };
    let rate = |seconds: f64| tokens as f64 / seconds;
    Row {
        what,
        device: if on_gpu { "cuda" } else { "cpu" },
        isa: if on_gpu { "cuda" } else { isa(kernel) },
        threads,
        bits: None,
        state_bits: None,
        m: tokens,
        axis: None,
        rows: None,
        cols: None,
        numerics: match (kernel.numerics, activations) {
            (Numerics::Exact, _) => "exact",
            (Numerics::Fast, Activations::F32) => "f32",
            (Numerics::Fast, _) => "int",
        },
        from: None,
        value: rate(times.median),
        best: rate(times.best),
        unit: "tokens/s",
        per_core: rate(times.median) / threads as f64,
        coded_gb_per_s: None,
        compared_with: None,
    }
}
