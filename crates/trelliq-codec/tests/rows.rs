//! Scale rules, packing of rows, layouts and refusals.

mod common;

use common::gaussian;
use half::f16;
use trelliq_codec::*;

fn trellis(bits: u32) -> Trellis {
    Trellis::new(Code::OneMad, 12, bits, 64).unwrap()
}

fn encode(rule: ScaleRule, weights: &[f32], cols: usize) -> EncodedRows {
    RowCodec::new(trellis(3), rule, 2).unwrap().encode(weights, cols, &|_| {}).unwrap()
}

#[test]
fn words_scales_states_and_reconstruction_tell_the_same_weights() {
    let (rows, cols) = (5, 192);
    let mut weights = gaussian(rows * cols, 1);
    weights[2 * cols..3 * cols].fill(0.0);
    for rule in ScaleRule::ALL {
        let coded = encode(rule, &weights, cols);
        let decoded = decode_rows(&trellis(3), &coded.words, &coded.scales, cols).unwrap();
        assert_eq!(decoded, coded.reconstruction);
        let values = trellis(3).values();
        for row in 0..rows {
            let span = row * cols..(row + 1) * cols;
            let scale = coded.scales[row].to_f32();
            let by_state: Vec<f32> = coded.states[span.clone()]
                .iter()
                .map(|&s| values[usize::from(s)] * scale)
                .collect();
            assert_eq!(by_state, decoded[span.clone()]);
            let error: f64 = weights[span.clone()]
                .iter()
                .zip(&decoded[span])
                .map(|(&w, &d)| f64::from(w - d).powi(2))
                .sum();
            assert!((error - coded.squared_error[row]).abs() <= 1e-6 * (1.0 + error));
        }
    }
}

#[test]
fn baseline_rule_is_rms_over_lut_rms() {
    let weights: Vec<f32> = gaussian(4 * 64, 2).iter().map(|w| 0.02 * w).collect();
    let coded = encode(ScaleRule::Baseline, &weights, 64);
    for (row, scale) in weights.chunks_exact(64).zip(&coded.scales) {
        let rms = (row.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>() / 64.0).sqrt();
        // lut_rms of 1mad at L = 12, from the specification.
        assert_eq!(*scale, f16::from_f64(rms / 1.0041072042258816));
    }
    let zero = encode(ScaleRule::Baseline, &[0.0; 64], 64);
    assert_eq!(zero.scales, [f16::ONE]);
}

#[test]
fn refit_makes_zero_rows_zero_and_grid_never_loses() {
    let zero = encode(ScaleRule::Tuned, &[0.0; 128], 128);
    assert!(zero.reconstruction.iter().all(|w| *w == 0.0));
    let weights = gaussian(16 * 128, 4);
    let error = |rule| encode(rule, &weights, 128).squared_error;
    let (baseline, tuned, grid) =
        (error(ScaleRule::Baseline), error(ScaleRule::Tuned), error(ScaleRule::Grid));
    assert!(grid.iter().zip(&tuned).all(|(g, t)| g <= t));
    assert!(tuned.iter().sum::<f64>() < baseline.iter().sum::<f64>());
}

#[test]
fn tiny_rows_keep_a_scale() {
    let weights: Vec<f32> = gaussian(64, 8).iter().map(|w| 1e-9 * w).collect();
    let coded = encode(ScaleRule::Baseline, &weights, 64);
    assert!(coded.scales[0] > f16::ZERO);
}

#[test]
fn thread_count_does_not_change_the_result() {
    let weights = gaussian(37 * 192, 9);
    let results: Vec<EncodedRows> = [1, 2, 5]
        .into_iter()
        .map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| encode(ScaleRule::Grid, &weights, 192))
        })
        .collect();
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
}

#[test]
fn progress_counts_every_weight_once() {
    let done = std::sync::atomic::AtomicUsize::new(0);
    let weights = gaussian(7 * 64, 3);
    let codec = RowCodec::new(trellis(2), ScaleRule::Tuned, 2).unwrap();
    let count = |n| {
        done.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
    };
    codec.encode(&weights, 64, &count).unwrap();
    assert_eq!(done.into_inner(), weights.len());
}

#[test]
fn interleaved_layout_both_ways() {
    let trellis = Trellis::new(Code::OneMad, 12, 3, 256).unwrap();
    let (rows, cols) = (3, 1024);
    let codes: Vec<u32> = (0..(rows * cols * 3 / 32) as u32).collect();
    let out = interleave(&trellis, &codes, rows, cols).unwrap();
    // out[g][r][w] = codes[r][48 g + w]
    for group in 0..2 {
        for row in 0..rows {
            for word in 0..48 {
                let stored = out[(group * rows + row) * 48 + word];
                assert_eq!(stored, codes[row * 96 + 48 * group + word]);
            }
        }
    }
    assert_eq!(deinterleave(&trellis, &out, rows, cols).unwrap(), codes);
    let other = Trellis::new(Code::OneMad, 12, 4, 256).unwrap();
    assert!(matches!(
        interleave(&other, &codes, rows, cols),
        Err(CodecError::NotInterleavable { .. })
    ));
    assert!(matches!(
        interleave(&trellis, &codes, rows, 768),
        Err(CodecError::RowLen { cols: 768, block_len: 512 })
    ));
    assert!(matches!(
        deinterleave(&trellis, &codes[1..], rows, cols),
        Err(CodecError::Length { what: "codes", .. })
    ));
}

#[test]
fn block_length_suits_the_width() {
    for (cols, bits, expected) in [
        (576, 3, Some(288)),
        (1536, 3, Some(256)),
        (192, 3, Some(192)),
        (960, 3, Some(320)),
        (640, 3, Some(320)),
        (2048, 1, Some(256)),
        (5632, 3, Some(256)),
        (4864, 5, Some(256)),
        (13696, 3, Some(128)),
        (29568, 4, Some(224)),
        (260, 8, Some(260)),
        (36, 8, Some(36)),
        (257, 3, None),
        (1000, 3, None),
        (0, 3, None),
    ] {
        assert_eq!(Trellis::choose_block_len(cols, bits), expected, "{cols} at K={bits}");
    }
}

#[test]
fn bad_parameters_are_named() {
    let new = |l, k, t| Trellis::new(Code::OneMad, l, k, t).unwrap_err();
    assert_eq!(new(3, 1, 32), CodecError::StateBits(3));
    assert_eq!(new(17, 1, 32), CodecError::StateBits(17));
    assert_eq!(new(12, 0, 32), CodecError::Bits { bits: 0, state_bits: 12 });
    assert_eq!(new(12, 9, 32), CodecError::Bits { bits: 9, state_bits: 12 });
    assert_eq!(new(4, 4, 32), CodecError::Bits { bits: 4, state_bits: 4 });
    let block = |block_len, bits, state_bits| CodecError::BlockLen { block_len, bits, state_bits };
    assert_eq!(new(12, 3, 33), block(33, 3, 12));
    assert_eq!(new(12, 3, 0), block(0, 3, 12));
    assert_eq!(new(12, 8, usize::MAX), block(usize::MAX, 8, 12));
    assert_eq!("2mad".parse::<Code>(), Err(CodecError::UnknownCode("2mad".into())));
    assert_eq!(BlockEncoder::new(trellis(3), 1).unwrap_err(), CodecError::Passes(1));
}

#[test]
fn bad_weights_are_named() {
    let codec = RowCodec::new(trellis(3), ScaleRule::Tuned, 2).unwrap();
    let mut weights = gaussian(4 * 64, 1);
    weights[130] = f32::INFINITY;
    let error = codec.encode(&weights, 64, &|_| {}).unwrap_err();
    assert_eq!(error, CodecError::NonFinite { index: 130, value: f32::INFINITY });
    weights[130] = 1.0;
    assert!(matches!(codec.encode(&weights, 96, &|_| {}), Err(CodecError::RowLen { .. })));
    assert!(matches!(codec.encode(&weights[1..], 64, &|_| {}), Err(CodecError::Length { .. })));
    weights[64..128].fill(1e6);
    let error = codec.encode(&weights, 64, &|_| {}).unwrap_err();
    assert!(matches!(error, CodecError::ScaleOverflow { row: 1, .. }), "{error}");
    let mut states = vec![0; 63];
    let error = codec.block_encoder().encode(&weights[..64], &mut states).unwrap_err();
    assert!(matches!(error, CodecError::Length { what: "states", .. }));
}

#[test]
fn wrong_word_counts_are_refused() {
    let trellis = trellis(3);
    let (mut states, mut out) = (vec![0; 64], vec![0.0; 64]);
    let mut words = vec![0; 6];
    assert!(pack_block(&trellis, &states[1..], &mut words).is_err());
    assert!(pack_block(&trellis, &states, &mut words[1..]).is_err());
    assert!(unpack_block(&trellis, &words[1..], &mut states).is_err());
    assert!(decode_block(&trellis, &trellis.values(), &words[1..], &mut out).is_err());
    assert!(decode_block(&trellis, &trellis.values()[1..], &words, &mut out).is_err());
    assert!(decode_rows(&trellis, &words[1..], &[f16::ONE], 64).is_err());
    assert!(decode_rows(&trellis, &words, &[f16::ONE], 65).is_err());
}
