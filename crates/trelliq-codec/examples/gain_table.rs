//! Prints the best gain for every code, L and K on N(0,1) with the refit, as `src/gains.rs` holds
//! it. Golden-section search over the gain, the same draws for every gain.

use rayon::prelude::*;
use trelliq_codec::{BlockEncoder, Code, Trellis, code_rms};

const BLOCK: usize = 256;

fn main() {
    println!(
        "//! Best gains on N(0,1), `[1mad, 3inst][L - 4][K - 1]`; entries with K >= L are never read.\n\
         //! Regenerate: `cargo run --release -p trelliq-codec --example gain_table`.\n\n\
         pub(crate) const GAIN_STATE_BITS: u32 = 4;\n\n\
         pub(crate) const GAINS: [[[f32; 8]; 13]; 2] = ["
    );
    let draws = gaussian(BLOCK << 8);
    for code in [Code::OneMad, Code::ThreeInst] {
        println!("    [");
        for state_bits in 4..=16u32 {
            // A state more costs twice the time: fewer draws for the large trellises.
            let blocks = (1usize << (18 - state_bits.min(13))).clamp(48, 256);
            let row: Vec<String> = (1..=8)
                .map(|bits| {
                    let gain = best_gain(code, state_bits, bits, &draws[..blocks * BLOCK]);
                    format!("{gain:.3}")
                })
                .collect();
            println!("        [{}],", row.join(", "));
            eprintln!("{code} L={state_bits}: {}", row.join(" "));
        }
        println!("    ],");
    }
    println!("];");
}

fn best_gain(code: Code, state_bits: u32, bits: u32, draws: &[f32]) -> f64 {
    let Ok(trellis) = Trellis::new(code, state_bits, bits, BLOCK) else {
        return 1.0;
    };
    let encoder = BlockEncoder::new(trellis, 2).expect("two passes");
    let error = |gain: f64| distortion(&encoder, draws, gain);
    let (mut low, mut high) = (0.6, 2.4);
    let ratio = (5f64.sqrt() - 1.0) / 2.0;
    let (mut a, mut b) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut at_a, mut at_b) = (error(a), error(b));
    while high - low > 0.01 {
        if at_a < at_b {
            (high, b, at_b) = (b, a, at_a);
            a = high - ratio * (high - low);
            at_a = error(a);
        } else {
            (low, a, at_a) = (a, b, at_b);
            b = low + ratio * (high - low);
            at_b = error(b);
        }
    }
    (low + high) / 2.0
}

/// Squared error a block with the block's own least-squares scale.
fn distortion(encoder: &BlockEncoder, draws: &[f32], gain: f64) -> f64 {
    let scale = (gain / code_rms(encoder.values())) as f32;
    let errors: Vec<f64> = draws
        .par_chunks(4 * BLOCK)
        .map(|x| {
            let scaled: Vec<f32> = x.iter().map(|x| x / scale).collect();
            let mut states = vec![0; x.len()];
            encoder.encode(&scaled, &mut states).expect("whole blocks");
            let (mut xx, mut xv, mut vv) = (0.0, 0.0, 0.0);
            for (&x, &s) in x.iter().zip(&states) {
                let (x, v) = (f64::from(x), f64::from(encoder.values()[usize::from(s)]));
                xx += x * x;
                xv += x * v;
                vv += v * v;
            }
            xx - xv * xv / vv
        })
        .collect();
    errors.iter().sum::<f64>() / draws.len() as f64
}

/// Seeded N(0,1) draws: Box-Muller over splitmix64.
fn gaussian(len: usize) -> Vec<f32> {
    let mut seed = 20_240_617_u64;
    let mut uniform = move || {
        seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + 2f64.powi(-54)
    };
    (0..len)
        .map(|_| {
            ((-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()) as f32
        })
        .collect()
}
