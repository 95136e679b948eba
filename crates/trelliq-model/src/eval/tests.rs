use super::stats::Against;
use super::*;

/// The definition, straight in f64.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
    logits.iter().map(|l| f64::from(*l).exp() / total).collect()
}

fn logits(n: usize, step: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * step).sin() * 6.0).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9 * b.abs().max(1.0)
}

#[test]
fn a_score_is_its_definition() {
    let (q, p) = (logits(50, 0.7), logits(50, 0.9));
    let (soft_q, soft_p) = (softmax(&q), softmax(&p));
    let kl: f64 = soft_p.iter().zip(&soft_q).map(|(p, q)| p * (p / q).ln()).sum();
    let score = score_token(&q, Some(&p), 17).unwrap();
    let against = score.against.unwrap();
    assert!(close(score.nll, -soft_q[17].ln()) && close(against.reference_nll, -soft_p[17].ln()));
    assert!(close(against.kl, kl) && kl > 0.1, "{} {kl}", against.kl);
    let reversed = score_token(&p, Some(&q), 17).unwrap().against.unwrap();
    assert!((reversed.kl - kl).abs() > 1e-3, "the divergence has a direction");
}

#[test]
fn equal_models_do_not_diverge() {
    let logits = logits(1000, 0.3);
    let against = score_token(&logits, Some(&logits), 0).unwrap().against.unwrap();
    assert_eq!((against.kl, against.same_top), (0.0, true));
    // A constant added to all logits changes nothing.
    let shifted: Vec<f32> = logits.iter().map(|l| l + 4.0).collect();
    assert!(score_token(&shifted, Some(&logits), 0).unwrap().against.unwrap().kl < 1e-9);
}

#[test]
fn ruled_out_tokens_and_broken_logits() {
    let infinity = f32::INFINITY;
    let p = [0.0, 0.0, -infinity];
    let score = score_token(&[0.0, 0.0, 0.0], Some(&p), 0).unwrap();
    assert!(close(score.against.unwrap().kl, 1.5f64.ln()));
    assert_eq!(score_token(&p, Some(&[0.0; 3]), 0), Err("evaluated"));
    assert_eq!(score_token(&p, None, 2), Err("evaluated"));
    assert_eq!(score_token(&[0.0, f32::NAN], None, 0), Err("evaluated"));
    assert_eq!(score_token(&[0.0, infinity], None, 0), Err("evaluated"));
    assert_eq!(score_token(&[-infinity, -infinity], None, 0), Err("evaluated"));
    assert_eq!(score_token(&[0.0, 1.0], Some(&[f32::NAN, 0.0]), 0), Err("reference"));
    assert_eq!(score_token(&[0.0, 1.0], None, 2), Err("evaluated"));
}

/// Figures of numpy: mean, median, percentile(99), std(ddof=1) / sqrt(n).
#[test]
fn statistics_of_known_scores() {
    let mut statistics = Statistics::default();
    let kl = [0.1, 0.4, 0.2, 0.8];
    for (i, kl) in kl.into_iter().enumerate() {
        let against = Against { reference_nll: 1.0, kl, same_top: i != 2 };
        statistics.push(TokenScore { nll: 2.0 + i as f64, against: Some(against) });
    }
    assert_eq!(statistics.tokens(), 4);
    assert!(close(statistics.perplexity(), 3.5f64.exp()));
    assert!(close(statistics.perplexity_stderr(), 3.5f64.exp() * 0.645_497_224_367_902_8));
    let found = statistics.comparison().unwrap();
    assert!(close(found.kl_mean, 0.375) && close(found.kl_median, 0.3));
    assert!(close(found.kl_p99, 0.788) && close(found.kl_max, 0.8));
    assert!(close(found.kl_stderr, 0.154_784_796_842_251_75), "{}", found.kl_stderr);
    assert!(close(found.reference_perplexity, 1f64.exp()));
    assert_eq!(found.reference_perplexity_stderr, 0.0);
    assert!(close(found.top1_agreement, 0.75));
    assert!(close(found.top1_agreement_stderr, (0.75f64 * 0.25 / 4.0).sqrt()));
    let change = |nll: f64| ((-nll).exp() - (-1f64).exp()).powi(2);
    let rms = ((change(2.0) + change(3.0) + change(4.0) + change(5.0)) / 4.0).sqrt();
    assert!(close(found.delta_p_rms, rms));
}

#[test]
fn without_a_reference_there_is_no_comparison() {
    let mut statistics = Statistics::default();
    statistics.push(TokenScore { nll: 1.0, against: None });
    assert_eq!(statistics.comparison(), None);
    assert_eq!(statistics.perplexity_stderr(), 0.0);
}
