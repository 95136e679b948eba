//! Scores of tokens and what they sum up to.

use super::Comparison;

/// What one position of a text says about a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenScore {
    /// Negative log-likelihood of the token that follows, in nats.
    pub nll: f64,
    /// The same against a reference.
    pub against: Option<Against>,
}

/// One position against a reference model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Against {
    pub reference_nll: f64,
    /// KL(reference || model) = sum p (ln p - ln q).
    pub kl: f64,
    pub same_top: bool,
}

/// The log-softmax of a row of logits: `logits[i] - normalizer`, summed in f64, and its largest.
struct LogSoftmax<'a> {
    logits: &'a [f32],
    normalizer: f64,
    top: usize,
}

impl<'a> LogSoftmax<'a> {
    /// `None` when no logit is finite or one is NaN or +infinity.
    fn new(logits: &'a [f32]) -> Option<Self> {
        let mut top = 0;
        for (i, &logit) in logits.iter().enumerate() {
            if logit.is_nan() || logit == f32::INFINITY {
                return None;
            }
            if logit > logits[top] {
                top = i;
            }
        }
        let largest = f64::from(*logits.get(top).filter(|logit| logit.is_finite())?);
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
        Some(Self { logits, normalizer: largest + sum.ln(), top })
    }

    fn at(&self, i: usize) -> f64 {
        f64::from(self.logits[i]) - self.normalizer
    }
}

/// Scores one position. `logits` and `reference`: `[vocab]`; `target`: the token that follows.
/// The error names the model whose logits are not finite (or whose target's are not).
pub fn score_token(
    logits: &[f32],
    reference: Option<&[f32]>,
    target: u32,
) -> Result<TokenScore, &'static str> {
    let (target, evaluated) = (target as usize, "evaluated");
    let model = LogSoftmax::new(logits).ok_or(evaluated)?;
    let nll = |softmax: &LogSoftmax| {
        let in_range = target < softmax.logits.len();
        in_range.then(|| -softmax.at(target)).filter(|nll| nll.is_finite())
    };
    let own = nll(&model).ok_or(evaluated)?;
    let against = match reference {
        None => None,
        Some(reference) => {
            let reference = LogSoftmax::new(reference).ok_or("reference")?;
            let kl = divergence(&reference, &model).ok_or(evaluated)?;
            let reference_nll = nll(&reference).ok_or("reference")?;
            Some(Against { reference_nll, kl, same_top: reference.top == model.top })
        }
    };
    Ok(TokenScore { nll: own, against })
}

/// KL(p || q); tokens that p rules out add nothing. `None` when q rules out one that p allows.
fn divergence(p: &LogSoftmax, q: &LogSoftmax) -> Option<f64> {
    let mut sum = 0.0;
    for i in 0..p.logits.len() {
        let log_p = p.at(i);
        if log_p.is_finite() {
            sum += log_p.exp() * (log_p - q.at(i));
        }
    }
    // Rounding can make the divergence of equal distributions negative by 1e-16.
    sum.is_finite().then_some(sum.max(0.0))
}

/// Scores of all tokens so far.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    nll: Vec<f64>,
    reference_nll: Vec<f64>,
    kl: Vec<f64>,
    same_top: usize,
}

impl Statistics {
    pub fn push(&mut self, score: TokenScore) {
        self.nll.push(score.nll);
        if let Some(against) = score.against {
            self.reference_nll.push(against.reference_nll);
            self.kl.push(against.kl);
            self.same_top += usize::from(against.same_top);
        }
    }

    /// Tokens scored.
    pub fn tokens(&self) -> usize {
        self.nll.len()
    }

    pub fn nll_mean(&self) -> f64 {
        mean(&self.nll)
    }

    /// exp(mean negative log-likelihood).
    pub fn perplexity(&self) -> f64 {
        mean(&self.nll).exp()
    }

    /// To first order: perplexity times the standard error of the mean.
    pub fn perplexity_stderr(&self) -> f64 {
        self.perplexity() * standard_error(&self.nll)
    }

    /// `None` when no score had a reference.
    pub fn comparison(&self) -> Option<Comparison> {
        let n = self.kl.len();
        if n == 0 {
            return None;
        }
        let mut sorted = self.kl.clone();
        sorted.sort_by(f64::total_cmp);
        let agreement = self.same_top as f64 / n as f64;
        let reference_perplexity = mean(&self.reference_nll).exp();
        let squares = self.nll.iter().zip(&self.reference_nll).map(|(model, reference)| {
            let change = (-model).exp() - (-reference).exp();
            change * change
        });
        Some(Comparison {
            reference_perplexity,
            reference_perplexity_stderr: reference_perplexity * standard_error(&self.reference_nll),
            kl_mean: mean(&self.kl),
            kl_stderr: standard_error(&self.kl),
            kl_median: quantile(&sorted, 0.5),
            kl_p99: quantile(&sorted, 0.99),
            kl_max: sorted[n - 1],
            top1_agreement: agreement,
            top1_agreement_stderr: (agreement * (1.0 - agreement) / n as f64).sqrt(),
            delta_p_rms: (squares.sum::<f64>() / n as f64).sqrt(),
        })
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Sample standard deviation over sqrt(n); 0 for fewer than two values.
fn standard_error(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    if n < 2.0 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (n - 1.0) / n).sqrt()
}

/// Linear between the neighbours, as numpy's default.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}
