//! How the model's own predictions depend on its linear layers: for sampled next tokens y, the gradients
//! of `-log p(y)` at the outputs of every linear layer.
//!
//! Over samples from the model, the mean square of these gradients is the diagonal of the Fisher
//! information, which is the curvature of the KL divergence that a change of an output causes
//! (<https://arxiv.org/abs/1412.1193>, section 6). Layers are run once more on the way back, so that
//! only one layer's intermediate values are held at a time.

mod attention;
mod ops;

use super::attention::{Heads, attend};
use super::cache::LayerCache;
use super::linear::Linear;
use super::ops::{add, gelu_tanh, rms_norm, silu, softmax};
use super::rotary::RotaryTable;
use super::{
    FeedForward, Layer, Model, ModelError, Run, RuntimeOptions, SequenceStep, layer_error,
};
use crate::config::Activation;
use crate::sampling::SplitMix64;
use ops::{gelu_tanh_slope, rms_norm_back, silu_slope};
use trelliq_kernels::Scratch;

/// Positions whose logits are held at a time.
const LOGIT_ROWS: usize = 64;

type Function = fn(f32) -> f32;

/// A linear layer of a decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinearSite {
    Query,
    Key,
    Value,
    AttentionOutput,
    Gate,
    Up,
    Down,
}

impl LinearSite {
    /// The layer's path inside of its decoder layer.
    pub fn path(self) -> &'static str {
        match self {
            LinearSite::Query => "self_attn.q_proj",
            LinearSite::Key => "self_attn.k_proj",
            LinearSite::Value => "self_attn.v_proj",
            LinearSite::AttentionOutput => "self_attn.o_proj",
            LinearSite::Gate => "mlp.gate_proj",
            LinearSite::Up => "mlp.up_proj",
            LinearSite::Down => "mlp.down_proj",
        }
    }
}

/// What went through a linear layer, forward and back.
#[derive(Debug, Clone, Copy)]
pub struct LinearGradient<'a> {
    pub layer: usize,
    pub site: LinearSite,
    /// x, `[tokens, in]`.
    pub input: &'a [f32],
    /// Gradient at the layer's output, `[tokens, out]`, summed over the losses of all positions.
    pub gradient: &'a [f32],
}

/// Told of every linear layer, from the last to the first.
pub type GradientObserver<'a> = &'a mut dyn FnMut(LinearGradient);

/// What is the same for every layer of a pass.
struct Pass<'a, 'b> {
    rotary: Option<&'a RotaryTable>,
    options: &'a RuntimeOptions,
    observer: GradientObserver<'b>,
}

impl Pass<'_, '_> {
    /// Shows a linear layer to the observer and takes the gradient to its input.
    fn back(
        &mut self,
        layer: usize,
        site: LinearSite,
        linear: &Linear,
        input: &[f32],
        gradient: &[f32],
    ) -> Result<Vec<f32>, ModelError> {
        (self.observer)(LinearGradient { layer, site, input, gradient });
        let tokens = gradient.len() / linear.out_features();
        input_gradient(linear, gradient, tokens, &format!("layers.{layer}.{}", site.path()))
    }
}

/// A layer's inner values that its backward pass needs.
struct Forward {
    attention_input: Vec<f32>,
    /// q and k before norms and rotation, and after.
    raw: [Vec<f32>; 2],
    turned: [Vec<f32>; 2],
    v: Vec<f32>,
    attended: Vec<f32>,
    attention_out: Vec<f32>,
    /// The residual stream between the two blocks.
    middle: Vec<f32>,
    feed_forward_input: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    inner: Vec<f32>,
    feed_forward_out: Vec<f32>,
}

impl Model {
    /// Runs `tokens` as a new sequence, samples a next token from the model's distribution at every
    /// position (by `seed`), and shows `observer` inputs and output gradients of all linear layers.
    ///
    /// Errors: those of [`forward`](Self::forward), a layer that is not dense, and a model on a GPU.
    pub fn gradients(
        &self,
        tokens: &[u32],
        seed: u64,
        options: &RuntimeOptions,
        observer: GradientObserver,
    ) -> Result<(), ModelError> {
        if !self.is_on_cpu() {
            return Err(ModelError::ObservedOnGpu);
        }
        let mut cache = self.new_cache();
        let mut steps = [SequenceStep { cache: &mut cache, tokens }];
        self.check(&steps)?;
        let tables = self.rotary_tables(&steps);
        let table = |index: usize| {
            let rope = &self.config.layers[index].rope;
            tables.iter().find(|(known, _)| known == rope).map(|(_, table)| table)
        };
        let mut x = self.embed(tokens, options)?;
        let ctx = super::Context { options: &options.kernel, scratch: Scratch::default() };
        let mut run = Run { steps: &mut steps, ctx, observer: &mut |_, _, _| {} };
        let mut inputs = Vec::with_capacity(self.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            inputs.push(x.clone());
            self.attention_block(index, layer, &mut x, table(index), &mut run)?;
            self.feed_forward_block(index, layer, &mut x, &mut run)?;
        }
        let mut gradient = self.head_gradient(&x, seed, options)?;
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let input = inputs.pop().expect("one a layer");
            let mut pass = Pass { rotary: table(index), options, observer: &mut *observer };
            self.layer_back(index, layer, &input, &mut gradient, &mut pass)?;
        }
        Ok(())
    }

    /// The gradient at the residual stream `x` before the final norm.
    fn head_gradient(
        &self,
        x: &[f32],
        seed: u64,
        options: &RuntimeOptions,
    ) -> Result<Vec<f32>, ModelError> {
        let width = self.config.hidden_size;
        let mut random = SplitMix64(seed);
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let mut gradient = Vec::with_capacity(x.len());
        for x in x.chunks(LOGIT_ROWS * width) {
            let mut normed = x.to_vec();
            rms_norm(&mut normed, &self.final_norm, self.config.rms_norm_eps);
            let mut logits = self.logits(&normed, options)?;
            for row in logits.chunks_exact_mut(self.vocab) {
                softmax(row);
                let token = sample(row, random.uniform());
                row[token] -= 1.0;
            }
            let back = input_gradient(head, &logits, x.len() / width, "lm_head")?;
            let norm = &self.final_norm;
            gradient.extend(rms_norm_back(x, norm, self.config.rms_norm_eps, &back));
        }
        Ok(gradient)
    }

    /// Turns the gradient at a layer's output, `[tokens, hidden]`, into that at its input.
    fn layer_back(
        &self,
        index: usize,
        layer: &Layer,
        x: &[f32],
        gradient: &mut [f32],
        pass: &mut Pass,
    ) -> Result<(), ModelError> {
        let forward = self.layer_again(index, layer, x, pass)?;
        let eps = self.config.rms_norm_eps;
        let at_input = self.feed_forward_back(index, layer, &forward, gradient, pass)?;
        add(gradient, &rms_norm_back(&forward.middle, &layer.feed_forward_norm, eps, &at_input));
        let at_input = self.attention_back(index, layer, &forward, gradient, pass)?;
        add(gradient, &rms_norm_back(x, &layer.attention_norm, eps, &at_input));
        Ok(())
    }

    fn layer_again(
        &self,
        index: usize,
        layer: &Layer,
        x: &[f32],
        pass: &Pass,
    ) -> Result<Forward, ModelError> {
        let config = &self.config;
        let (eps, m) = (config.rms_norm_eps, x.len() / config.hidden_size);
        let mut ctx = super::Context { options: &pass.options.kernel, scratch: Scratch::default() };
        let mut linear = |linear: &Linear, x: &[f32]| {
            linear.forward(x, m, &mut ctx).map_err(|source| layer_error(index, "linear", source))
        };
        let mut attention_input = x.to_vec();
        rms_norm(&mut attention_input, &layer.attention_norm, eps);
        let attention = &layer.attention;
        let raw =
            [linear(&attention.q, &attention_input)?, linear(&attention.k, &attention_input)?];
        let v = linear(&attention.v, &attention_input)?;
        let mut turned = raw.clone();
        let norms = [&attention.q_norm, &attention.k_norm];
        let heads = [config.num_heads, config.num_kv_heads];
        for ((x, norm), heads) in turned.iter_mut().zip(norms).zip(heads) {
            if let Some(norm) = norm {
                rms_norm(x, norm, eps);
            }
            if let Some(rotary) = pass.rotary {
                rotary.rotate(x, heads);
            }
        }
        let cache = LayerCache { keys: turned[1].clone(), values: v.clone() };
        let mut attended = turned[0].clone();
        attend(&self.heads(index), &mut attended, &cache);
        let attention_out = linear(&attention.output, &attended)?;
        let mut middle = attention_out.clone();
        if let Some(norm) = &layer.post_attention_norm {
            rms_norm(&mut middle, norm, eps);
        }
        add(&mut middle, x);
        let mut feed_forward_input = middle.clone();
        rms_norm(&mut feed_forward_input, &layer.feed_forward_norm, eps);
        let gate = linear(&layer.feed_forward.gate, &feed_forward_input)?;
        let up = linear(&layer.feed_forward.up, &feed_forward_input)?;
        let act = match config.activation {
            Activation::Silu => silu,
            Activation::GeluTanh => gelu_tanh,
        };
        let inner: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| act(*g) * u).collect();
        // Only a norm after the block asks for its output.
        let feed_forward_out = match layer.post_feed_forward_norm {
            Some(_) => linear(&layer.feed_forward.down, &inner)?,
            None => Vec::new(),
        };
        Ok(Forward {
            attention_input,
            raw,
            turned,
            v,
            attended,
            attention_out,
            middle,
            feed_forward_input,
            gate,
            up,
            inner,
            feed_forward_out,
        })
    }

    /// The gradient at the feed-forward block's normed input.
    fn feed_forward_back(
        &self,
        index: usize,
        layer: &Layer,
        forward: &Forward,
        gradient: &[f32],
        pass: &mut Pass,
    ) -> Result<Vec<f32>, ModelError> {
        let added = match &layer.post_feed_forward_norm {
            Some(norm) => {
                let eps = self.config.rms_norm_eps;
                rms_norm_back(&forward.feed_forward_out, norm, eps, gradient)
            }
            None => gradient.to_vec(),
        };
        let FeedForward { gate, up, down } = &layer.feed_forward;
        let inner = pass.back(index, LinearSite::Down, down, &forward.inner, &added)?;
        let (act, slope): (Function, Function) = match self.config.activation {
            Activation::Silu => (silu, silu_slope),
            Activation::GeluTanh => (gelu_tanh, gelu_tanh_slope),
        };
        let values = || inner.iter().zip(&forward.gate).zip(&forward.up);
        let at_gate: Vec<f32> = values().map(|((d, g), u)| d * u * slope(*g)).collect();
        let at_up: Vec<f32> = values().map(|((d, g), _)| d * act(*g)).collect();
        let mut at_input =
            pass.back(index, LinearSite::Gate, gate, &forward.feed_forward_input, &at_gate)?;
        add(
            &mut at_input,
            &pass.back(index, LinearSite::Up, up, &forward.feed_forward_input, &at_up)?,
        );
        Ok(at_input)
    }

    /// The gradient at the attention's normed input.
    fn attention_back(
        &self,
        index: usize,
        layer: &Layer,
        forward: &Forward,
        gradient: &[f32],
        pass: &mut Pass,
    ) -> Result<Vec<f32>, ModelError> {
        let config = &self.config;
        let eps = config.rms_norm_eps;
        let added = match &layer.post_attention_norm {
            Some(norm) => rms_norm_back(&forward.attention_out, norm, eps, gradient),
            None => gradient.to_vec(),
        };
        let attention = &layer.attention;
        let attended = pass.back(
            index,
            LinearSite::AttentionOutput,
            &attention.output,
            &forward.attended,
            &added,
        )?;
        let [q, k] = &forward.turned;
        let (mut at_q, mut at_k, at_v) =
            attention::backward(&self.heads(index), q, k, &forward.v, &attended);
        for (at, raw, norm, heads) in [
            (&mut at_q, &forward.raw[0], &attention.q_norm, config.num_heads),
            (&mut at_k, &forward.raw[1], &attention.k_norm, config.num_kv_heads),
        ] {
            if let Some(rotary) = pass.rotary {
                rotary.rotate_back(at, heads);
            }
            if let Some(norm) = norm {
                *at = rms_norm_back(raw, norm, eps, at);
            }
        }
        let input = &forward.attention_input;
        let mut at_input = pass.back(index, LinearSite::Query, &attention.q, input, &at_q)?;
        add(&mut at_input, &pass.back(index, LinearSite::Key, &attention.k, input, &at_k)?);
        add(&mut at_input, &pass.back(index, LinearSite::Value, &attention.v, input, &at_v)?);
        Ok(at_input)
    }
}

/// `gradient W`, the gradient at a layer's input; `gradient` may lack W's last rows.
fn input_gradient(
    linear: &Linear,
    gradient: &[f32],
    m: usize,
    path: &str,
) -> Result<Vec<f32>, ModelError> {
    match linear {
        Linear::Dense { weight, .. } => Ok(weight.product_transposed(gradient, m)),
        _ => Err(ModelError::NotDense { layer: path.to_owned() }),
    }
}

/// The token whose share of the cumulative distribution holds `at`, in [0, 1).
fn sample(probabilities: &[f32], at: f64) -> usize {
    let total: f64 = probabilities.iter().map(|p| f64::from(*p)).sum();
    let mut left = at * total;
    for (token, p) in probabilities.iter().enumerate() {
        left -= f64::from(*p);
        if left < 0.0 {
            return token;
        }
    }
    probabilities.len() - 1
}

#[cfg(test)]
mod tests;
