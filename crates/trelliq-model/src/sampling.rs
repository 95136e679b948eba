//! Choosing the next token from logits.
//!
//! The order is that of transformers' generation: repetition penalty, temperature, top-k, top-p,
//! min-p, then a draw from what is left.

/// How tokens are chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingOptions {
    /// Logits are divided by it; 0 takes the largest logit always.
    pub temperature: f32,
    /// Keep this many of the largest logits, and those that equal the last of them; 0 for all.
    pub top_k: usize,
    /// Keep the fewest most probable tokens whose probabilities sum to this; 1 for all.
    pub top_p: f32,
    /// Keep tokens of at least this share of the largest probability; 0 for all.
    pub min_p: f32,
    /// Logits of tokens that have occurred are divided by it where positive and multiplied where
    /// negative (<https://arxiv.org/abs/1909.05858>); 1 for none.
    pub repetition_penalty: f32,
    /// Where the random numbers start; the same seed draws the same tokens.
    pub seed: u64,
}

impl Default for SamplingOptions {
    /// Greedy.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

/// A sampling option outside of its range, or logits that nothing can be drawn from.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    #[error("{option} is {value}, expected {expected}")]
    Option { option: &'static str, value: f32, expected: &'static str },
    #[error("the logits have no finite value: the model has overflowed or its weights are broken")]
    NotFinite,
}

impl SamplingOptions {
    /// Errors name the option that is out of range.
    pub fn check(&self) -> Result<(), SamplingError> {
        let finite = |x: f32| x.is_finite();
        let checks = [
            ("temperature", self.temperature, self.temperature >= 0.0, "a number from 0"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0,
                "above 0",
            ),
        ];
        for (option, value, inside, expected) in checks {
            if !finite(value) || !inside {
                return Err(SamplingError::Option { option, value, expected });
            }
        }
        Ok(())
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): `s += 0x9E3779B97F4A7C15`, then two xor-shift
/// multiplies of s. The same on every platform.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64(pub u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in 0..1, from the upper 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplingOptions,
    random: SplitMix64,
}

impl Sampler {
    /// Errors when an option is out of range.
    pub fn new(options: SamplingOptions) -> Result<Self, SamplingError> {
        options.check()?;
        let random = SplitMix64(options.seed);
        Ok(Self { options, random })
    }

    /// The next token. `seen`: the prompt and what was generated, for the repetition penalty.
    pub fn sample(&mut self, logits: &[f32], seen: &[u32]) -> Result<u32, SamplingError> {
        let mut logits = logits.to_vec();
        penalise(&mut logits, seen, self.options.repetition_penalty);
        if self.options.temperature == 0.0 {
            return argmax(&logits).ok_or(SamplingError::NotFinite);
        }
        let candidates = candidates(&logits, &self.options)?;
        let total: f64 = candidates.iter().map(|c| c.probability).sum();
        let mut left = self.random.uniform() * total;
        for candidate in &candidates {
            left -= candidate.probability;
            if left < 0.0 {
                return Ok(candidate.token);
            }
        }
        candidates.last().map(|c| c.token).ok_or(SamplingError::NotFinite)
    }
}

/// The token of the largest logit, the first of several; `None` when none is finite.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (token, &logit) in logits.iter().enumerate() {
        if logit.is_finite() && best.is_none_or(|(_, largest)| logit > largest) {
            best = Some((token, logit));
        }
    }
    best.map(|(token, _)| token as u32)
}

fn penalise(logits: &mut [f32], seen: &[u32], penalty: f32) {
    if penalty == 1.0 {
        return;
    }
    let mut done = vec![false; logits.len()];
    for &token in seen {
        let token = token as usize;
        if token < logits.len() && !std::mem::replace(&mut done[token], true) {
            let logit = &mut logits[token];
            *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
        }
    }
}

/// A token that may be drawn. Probabilities are relative to the largest.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    token: u32,
    probability: f64,
}

/// What temperature, top-k, top-p and min-p leave, most probable first.
fn candidates(logits: &[f32], options: &SamplingOptions) -> Result<Vec<Candidate>, SamplingError> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.retain(|token| logits[*token as usize].is_finite());
    let rank =
        |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if options.top_k > 0 && options.top_k < order.len() {
        let (_, last, _) = order.select_nth_unstable_by(options.top_k - 1, rank);
        let smallest = logits[*last as usize];
        order.retain(|token| logits[*token as usize] >= smallest);
    }
    order.sort_unstable_by(rank);
    let largest = logits[*order.first().ok_or(SamplingError::NotFinite)? as usize];
    let probability = |token: u32| {
        let below = f64::from(logits[token as usize]) - f64::from(largest);
        (below / f64::from(options.temperature)).exp()
    };
    let mut kept: Vec<Candidate> =
        order.iter().map(|&token| Candidate { token, probability: probability(token) }).collect();
    keep_top_p(&mut kept, f64::from(options.top_p));
    let floor = f64::from(options.min_p);
    kept.retain(|candidate| candidate.probability >= floor);
    Ok(kept)
}

/// Keeps a candidate when those before it sum to less than `top_p`.
fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f64) {
    if top_p >= 1.0 {
        return;
    }
    let total: f64 = candidates.iter().map(|c| c.probability).sum();
    let mut sum = 0.0;
    let kept = candidates.iter().take_while(|candidate| {
        let before = sum;
        sum += candidate.probability;
        before < top_p * total
    });
    let kept = kept.count();
    candidates.truncate(kept.max(1));
}

#[cfg(test)]
mod tests;
