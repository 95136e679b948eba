//! From a budget to the width of every linear layer.

use crate::allocate::{Item, allocate};
use crate::encode::prepare;
use crate::hessian::HessianFile;
use crate::options::Budget;
use crate::pipeline::{for_each, workers};
use crate::plan::{EMBEDDING, HEAD, LayerPlan};
use crate::sensitivity::sensitivity;
use crate::{Event, Progress, QuantizeError, QuantizeOptions};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use trelliq_codec::{BITS, Trellis};
use trelliq_format::ModelSource;

/// Bits for each linear layer of `plans`, by path, under `budget`. `dense_bytes`: of the tensors that
/// stay as they are. `hessians` are weighted, and each layer is coded along its outputs.
pub(crate) fn widths(
    source: &ModelSource,
    plans: &[LayerPlan],
    options: &QuantizeOptions,
    budget: Budget,
    hessians: &HessianFile,
    dense_bytes: u64,
    progress: Progress,
) -> Result<BTreeMap<String, u32>, QuantizeError> {
    let layers: Vec<&LayerPlan> =
        plans.iter().filter(|p| p.path != EMBEDDING && p.path != HEAD).collect();
    let sensitivities = sensitivities(source, &layers, options, hessians, progress)?;
    let items: Vec<Item> = layers
        .iter()
        .zip(sensitivities)
        .map(|(plan, sensitivity)| Item {
            sensitivity,
            bytes_a_bit: plan.weights() as u64 / 8,
            legal: legal(plan, options),
        })
        .collect();
    let left = code_bytes(plans, &layers, budget, dense_bytes);
    let bits = allocate(&items, left).ok_or_else(|| QuantizeError::BudgetTooSmall {
        least: items.iter().map(Item::least_bytes).sum(),
        budget: left,
    })?;
    Ok(layers.iter().map(|plan| plan.path.clone()).zip(bits).collect())
}

/// Bytes that the codes of `layers` may take.
fn code_bytes(plans: &[LayerPlan], layers: &[&LayerPlan], budget: Budget, dense_bytes: u64) -> u64 {
    let weights: usize = layers.iter().map(|plan| plan.weights()).sum();
    match budget {
        Budget::AverageBits(bits) => (weights as f64 * bits / 8.0) as u64,
        Budget::TotalBytes(total) => {
            let fixed = plans.iter().map(|plan| plan.side_bytes() as u64).sum::<u64>();
            let others = plans.iter().filter(|p| p.path == EMBEDDING || p.path == HEAD);
            let others: u64 = others
                .map(|p| p.weights() as u64 * u64::from(p.quantization.trellis.bits()) / 8)
                .sum();
            total.saturating_sub(dense_bytes + fixed + others)
        }
    }
}

/// The widths at which a layer has a block length.
fn legal(plan: &LayerPlan, options: &QuantizeOptions) -> [bool; 8] {
    let (_, cols) = plan.stored();
    let legal = |bits: u32| match options.block_len {
        Some(block_len) => Trellis::new(options.code, options.state_bits, bits, block_len)
            .is_ok_and(|trellis| trellis.words_per_row(cols).is_ok()),
        None => Trellis::choose_block_len(cols, bits).is_some(),
    };
    let mut found = [false; 8];
    BITS.zip(&mut found).for_each(|(bits, found)| *found = legal(bits));
    found
}

fn sensitivities(
    source: &ModelSource,
    layers: &[&LayerPlan],
    options: &QuantizeOptions,
    hessians: &HessianFile,
    progress: Progress,
) -> Result<Vec<f64>, QuantizeError> {
    let total = layers.iter().map(|p| p.weights() as u64).sum();
    progress(Event::Stage { name: "allocate", total });
    let found = Mutex::new(vec![0.0; layers.len()]);
    let measure = |index: usize| -> Result<(), QuantizeError> {
        let plan = layers[index];
        let outputs = hessians.outputs(&plan.path, plan.out_features)?;
        let outputs = outputs.ok_or_else(|| QuantizeError::Part {
            path: hessians.path().to_owned(),
            reason: format!("it says nothing of {}", plan.path),
        })?;
        let tokens = hessians.info.tokens.get(&plan.path).copied().unwrap_or(0);
        let prepared = prepare(source, plan, options, Some(hessians))?;
        let value = sensitivity(&prepared, &outputs, tokens);
        found.lock().unwrap_or_else(PoisonError::into_inner)[index] = value;
        progress(Event::Advance(plan.weights() as u64));
        Ok(())
    };
    for_each(layers.len(), workers(layers.iter().copied()), &measure)?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}
