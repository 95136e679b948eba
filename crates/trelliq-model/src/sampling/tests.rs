use super::*;

fn kept(logits: &[f32], options: SamplingOptions) -> Vec<(u32, f64)> {
    let candidates = candidates(logits, &options).unwrap();
    let total: f64 = candidates.iter().map(|c| c.probability).sum();
    candidates.iter().map(|c| (c.token, c.probability / total)).collect()
}

fn options() -> SamplingOptions {
    SamplingOptions { temperature: 1.0, ..Default::default() }
}

fn assert_close(found: &[(u32, f64)], expected: &[(u32, f64)]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.0, expected.0);
        assert!((found.1 - expected.1).abs() < 1e-6, "{found:?} {expected:?}");
    }
}

/// Logits whose softmax is 0.1, 0.4, 0.2, 0.3.
fn logits() -> Vec<f32> {
    [0.1f32, 0.4, 0.2, 0.3].map(|p| p.ln() + 5.0).to_vec()
}

#[test]
fn without_filters_it_is_the_softmax() {
    assert_close(&kept(&logits(), options()), &[(1, 0.4), (3, 0.3), (2, 0.2), (0, 0.1)]);
}

#[test]
fn temperature_takes_powers_of_probabilities() {
    let found = kept(&logits(), SamplingOptions { temperature: 0.5, ..options() });
    // 0.16, 0.09, 0.04, 0.01 over their sum 0.3.
    let expected = [(1, 16.0 / 30.0), (3, 9.0 / 30.0), (2, 4.0 / 30.0), (0, 1.0 / 30.0)];
    assert_close(&found, &expected);
}

#[test]
fn top_k_keeps_the_largest_and_what_equals_the_last() {
    let found = kept(&logits(), SamplingOptions { top_k: 2, ..options() });
    assert_close(&found, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
    let tied = kept(&[1.0, 2.0, 1.0, 0.0], SamplingOptions { top_k: 2, ..options() });
    assert_eq!(tied.iter().map(|c| c.0).collect::<Vec<_>>(), [1, 0, 2]);
    assert_eq!(kept(&logits(), SamplingOptions { top_k: 9, ..options() }).len(), 4);
}

#[test]
fn top_p_keeps_the_fewest_that_reach_it() {
    for (top_p, count) in [(0.05, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.91, 4)] {
        let found = kept(&logits(), SamplingOptions { top_p, ..options() });
        assert_eq!(found.len(), count, "{top_p}");
    }
}

/// top-p sees what top-k left: 4/7 alone reaches 0.5.
#[test]
fn filters_work_on_what_those_before_them_left() {
    let found = kept(&logits(), SamplingOptions { top_k: 2, top_p: 0.5, ..options() });
    assert_close(&found, &[(1, 1.0)]);
    // Temperature comes first: at 0.5 the best has 16/30.
    let found = kept(&logits(), SamplingOptions { temperature: 0.5, top_p: 0.5, ..options() });
    assert_close(&found, &[(1, 1.0)]);
}

#[test]
fn min_p_is_relative_to_the_largest() {
    let found = kept(&logits(), SamplingOptions { min_p: 0.51, ..options() });
    assert_close(&found, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
    assert_eq!(kept(&logits(), SamplingOptions { min_p: 1.0, ..options() }).len(), 1);
}

#[test]
fn repetition_penalty_moves_logits_towards_less_once() {
    let mut logits = vec![2.0, -2.0, 3.0, 0.5];
    penalise(&mut logits, &[0, 1, 0, 99], 2.0);
    assert_eq!(logits, [1.0, -4.0, 3.0, 0.5]);
    let greedy = SamplingOptions { repetition_penalty: 4.0, ..Default::default() };
    let mut sampler = Sampler::new(greedy).unwrap();
    assert_eq!(sampler.sample(&[2.0, -2.0, 3.0, 0.9], &[2, 0]).unwrap(), 3);
}

/// The first outputs for seed 1234567 of the reference implementation, as Rosetta Code lists them.
#[test]
fn random_numbers_are_those_of_splitmix64() {
    let mut random = SplitMix64(1_234_567);
    let expected =
        [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423u64];
    assert_eq!(expected.map(|_| random.next()), expected);
}

#[test]
fn draws_have_the_frequencies_of_the_softmax() {
    let mut sampler = Sampler::new(SamplingOptions { seed: 3, ..options() }).unwrap();
    let mut counts = [0u32; 4];
    let draws = 20_000;
    for _ in 0..draws {
        counts[sampler.sample(&logits(), &[]).unwrap() as usize] += 1;
    }
    for (count, p) in counts.into_iter().zip([0.1, 0.4, 0.2, 0.3]) {
        // Five standard deviations.
        let bound = 5.0 * (f64::from(draws) * p * (1.0 - p)).sqrt();
        assert!((f64::from(count) - f64::from(draws) * p).abs() < bound, "{counts:?}");
    }
}

#[test]
fn greedy_takes_the_first_of_the_largest_and_skips_nan() {
    let mut sampler = Sampler::new(SamplingOptions::default()).unwrap();
    assert_eq!(sampler.sample(&[1.0, 3.0, f32::NAN, 3.0], &[]).unwrap(), 1);
    let nothing = [f32::NAN, f32::NEG_INFINITY];
    assert_eq!(sampler.sample(&nothing, &[]), Err(SamplingError::NotFinite));
    let mut warm = Sampler::new(options()).unwrap();
    assert_eq!(warm.sample(&nothing, &[]), Err(SamplingError::NotFinite));
}

#[test]
fn options_out_of_range_are_named() {
    let cases = [
        (SamplingOptions { temperature: -1.0, ..options() }, "temperature is -1"),
        (SamplingOptions { temperature: f32::NAN, ..options() }, "temperature is NaN"),
        (SamplingOptions { top_p: 0.0, ..options() }, "top_p is 0"),
        (SamplingOptions { min_p: 1.5, ..options() }, "min_p is 1.5"),
        (SamplingOptions { repetition_penalty: 0.0, ..options() }, "repetition_penalty is 0"),
    ];
    for (options, expected) in cases {
        let error = Sampler::new(options).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
