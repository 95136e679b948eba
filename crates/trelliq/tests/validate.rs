//! The distortion table against the paper's figures and the specification's.

mod common;

use common::{fail, succeed};
use serde_json::Value;

/// QTIP (arXiv:2406.11235), Table 2, and what the specification measured for `1mad`: baseline rule
/// and best gains, for K = 1..=4 at L = 12.
const PAPER: [f64; 4] = [0.2803, 0.0733, 0.0198, 0.0055];
const ONE_MAD: [f64; 4] = [0.288, 0.0754, 0.0201, 0.0056];
const ONE_MAD_TUNED: [f64; 4] = [0.2825, 0.0753, 0.0197, 0.0052];

fn rows(args: &str) -> Vec<Value> {
    let args = ["validate", "--json"].into_iter().chain(args.split(' '));
    succeed(args)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object a line"))
        .collect()
}

fn errors(rows: &[Value]) -> [f64; 4] {
    let errors: Vec<f64> = rows.iter().map(|row| row["mse"].as_f64().unwrap()).collect();
    errors.try_into().expect("K = 1..=4")
}

/// Within 2 % of a published figure, of which half a unit of the last digit is rounding.
fn assert_near(found: [f64; 4], expected: [f64; 4], half_units: [f64; 4]) {
    for ((found, expected), half_unit) in found.into_iter().zip(expected).zip(half_units) {
        let allowed = 0.02 * expected + half_unit;
        assert!((found - expected).abs() <= allowed, "{found} is not near {expected}");
    }
}

#[test]
fn the_random_code_reaches_the_paper() {
    let rows = rows("--code rand --scale-rule baseline --samples 600000");
    assert_near(errors(&rows), PAPER, [0.00005; 4]);
    for (row, (paper, bits)) in rows.iter().zip(PAPER.into_iter().zip(1..)) {
        assert_eq!(row["paper"].as_f64(), Some(paper));
        assert_eq!(row["bits"].as_u64(), Some(bits));
        assert_eq!(row["limit"].as_f64(), Some(0.25f64.powi(bits as i32)));
        assert_eq!((row["state_bits"].as_u64(), row["block_len"].as_u64()), (Some(12), Some(256)));
    }
}

#[test]
fn the_computed_code_reaches_its_figures_by_the_baseline_rule() {
    let rows = rows("--code 1mad --scale-rule baseline --samples 600000 --seed 1");
    assert_near(errors(&rows), ONE_MAD, [0.0005, 0.00005, 0.00005, 0.00005]);
}

#[test]
fn the_tuned_rule_is_at_least_as_good_as_the_best_gains_seen() {
    let found = errors(&rows("--code 1mad --scale-rule tuned --samples 400000"));
    for (found, bound) in found.into_iter().zip(ONE_MAD_TUNED) {
        assert!(found <= bound, "{found} is above {bound}");
    }
}

#[test]
fn no_code_beats_the_rate_distortion_limit() {
    for row in rows("--state-bits 6 --bits 1-8 --scale-rule tuned,grid --samples 20000") {
        assert!(row["mse"].as_f64() > row["limit"].as_f64(), "{row}");
        assert!(row["bits"].as_u64() < Some(6));
    }
}

#[test]
fn the_plot_is_an_svg_with_a_label_for_every_curve() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plot.svg");
    let path = file.display().to_string();
    succeed(["validate", "--state-bits", "6", "--samples", "5000", "--plot", &path]);
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for label in
        ["rand L=6 baseline", "1mad L=6 tuned", "3inst L=6 tuned", "limit", "bits a weight (K)"]
    {
        assert!(svg.contains(label), "no {label}");
    }
}

#[test]
fn wrong_usage_exits_with_2_and_impossible_work_with_1() {
    assert!(fail(2, ["validate", "--bits", "9"]).contains("1-8"));
    assert!(fail(2, ["validate", "--code", "2mad"]).contains("3inst"));
    let error = fail(1, ["validate", "--block-len", "100"]);
    assert!(error.starts_with("error: block_len (T) is 100"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}
