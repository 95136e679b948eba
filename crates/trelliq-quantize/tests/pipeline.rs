//! The pipeline on a small trained model: what is written is what was coded, whatever interrupts it.

use half::bf16;
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use trelliq_codec::ScaleRule;
use trelliq_format::{ModelSource, WriterOptions, load_packed};
use trelliq_kernels::{Axis, Numerics, TrellisLinear};
use trelliq_model::{
    LayerInput, LinearSite, LoadOptions, Model, RuntimeOptions, SequenceStep, Tokenizer,
};
use trelliq_quantize::*;

const QUERY: &str = "model.layers.0.self_attn.q_proj";

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny")
}

fn source() -> ModelSource {
    ModelSource::open_path(&tiny()).unwrap()
}

/// Few layers, so that a test codes little.
fn options() -> QuantizeOptions {
    QuantizeOptions {
        bits: 3,
        state_bits: 8,
        include: vec!["model.layers.[01].*".into()],
        ..QuantizeOptions::default()
    }
}

fn run(source: &ModelSource, out: &Path, options: &QuantizeOptions) -> Manifest {
    quantize(source, out, options, &|_| {}).unwrap()
}

fn fails(options: &QuantizeOptions) -> QuantizeError {
    let directory = tempfile::tempdir().unwrap();
    let error = quantize(&source(), &directory.path().join("out"), options, &|_| {}).unwrap_err();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "{error} left something");
    error
}

fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read(path).unwrap())
        })
        .collect()
}

/// `||a - b||^2 / ||a||^2`.
fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let error: f64 = a.iter().zip(b).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    error / a.iter().map(|&a| square(f64::from(a))).sum::<f64>()
}

fn weight(source: &ModelSource, path: &str, numerics: Numerics) -> Vec<f32> {
    let layer = load_packed(source, path, None).unwrap();
    let linear = TrellisLinear::new(layer.matrix, layer.rotation, layer.bias).unwrap();
    let mut weight = vec![0.0; linear.in_features() * linear.out_features()];
    linear.expand_weight(numerics, &mut weight).unwrap();
    weight
}

#[test]
fn written_codes_hold_the_weights_that_the_manifest_says() {
    let directory = tempfile::tempdir().unwrap();
    for (name, axis, rotate, rule) in [
        ("a", AxisChoice::Auto, true, ScaleRule::Tuned),
        ("b", AxisChoice::Fixed(Axis::In), true, ScaleRule::Grid),
        ("c", AxisChoice::Fixed(Axis::Out), false, ScaleRule::Baseline),
    ] {
        let out = directory.path().join(name);
        let options = QuantizeOptions { axis, rotate, scale_rule: rule, ..options() };
        let manifest = run(&source(), &out, &options);
        let packed = ModelSource::open_path(&out).unwrap();
        assert_eq!(manifest.layers.len(), 14);
        for (path, report) in &manifest.layers {
            let original = source().read_f32(&format!("{path}.weight")).unwrap();
            let error = relative_error(&original, &weight(&packed, path, Numerics::Fast));
            assert!(
                (error / report.relative_error - 1.0).abs() < 1e-3,
                "{path}: {error} measured, {} reported",
                report.relative_error
            );
            // 3 bits of any sane code: below the Lloyd-Max quantizer of equal rate, above the limit.
            assert!((0.0156..0.06).contains(&error), "{path}: {error}");
        }
        // What is not coded stays byte for byte.
        for info in source().tensors().filter(|i| packed.info(&i.name).is_some()) {
            let path = info.name.trim_end_matches(".weight");
            if !manifest.layers.contains_key(path) {
                let (before, after) = (source(), packed.dense_bytes(&info.name).unwrap().1);
                assert_eq!(before.dense_bytes(&info.name).unwrap().1, after, "{}", info.name);
            }
        }
        let stored = String::from_utf8(files(&out)[MANIFEST_FILE].clone()).unwrap();
        assert_eq!(stored, serde_json::to_string_pretty(&manifest).unwrap());
        assert!(!directory.path().join(format!("{name}.partial")).exists());
    }
}

#[test]
fn shared_inputs_share_their_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    run(&source(), &out, &options());
    let packed = ModelSource::open_path(&out).unwrap();
    let rotation = |name: &str| {
        load_packed(&packed, &format!("model.layers.0.{name}"), None).unwrap().rotation.unwrap()
    };
    let (q, k, gate) =
        (rotation("self_attn.q_proj"), rotation("self_attn.k_proj"), rotation("mlp.gate_proj"));
    assert_eq!(q.su(), k.su());
    assert_ne!(q.su(), gate.su());
    assert_eq!((q.in_block(), q.out_block()), (64, 64));
}

#[test]
fn embedding_and_head_are_coded_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let options = QuantizeOptions {
        embed_bits: Some(6),
        include: vec![QUERY.into()],
        rotate: true,
        ..options()
    };
    let manifest = run(&source(), &out, &options);
    let report = &manifest.layers["model.embed_tokens"];
    assert_eq!((report.bits, report.axis, report.rotation), (6, 1, Some([64, 1])));
    let packed = ModelSource::open_path(&out).unwrap();
    let layer = load_packed(&packed, "model.embed_tokens", None).unwrap();
    let linear = TrellisLinear::new(layer.matrix, layer.rotation, None).unwrap();
    let mut row = vec![0.0; linear.in_features()];
    linear.row(777, Numerics::Fast, &mut row).unwrap();
    let mut original = vec![0.0; row.len()];
    source().read_rows_f32("model.embed_tokens.weight", 777..778, &mut original).unwrap();
    assert!(relative_error(&original, &row) < 0.01);
    // The head is the embedding: there is no tensor of its own to code.
    let error = fails(&QuantizeOptions { head_bits: Some(4), ..options });
    assert!(matches!(error, QuantizeError::NoSuchTensor("output head")), "{error}");
}

#[test]
fn decoding_gives_a_dense_bf16_model() {
    let directory = tempfile::tempdir().unwrap();
    for (name, rotate) in [("rotated", true), ("plain", false)] {
        let out = directory.path().join(name);
        let dense = directory.path().join(format!("{name}-dense"));
        run(&source(), &out, &QuantizeOptions { rotate, ..options() });
        let packed = ModelSource::open_path(&out).unwrap();
        decode(&packed, &dense, WriterOptions::default(), &|_| {}).unwrap();
        let decoded = ModelSource::open_path(&dense).unwrap();
        assert!(decoded.quantization().is_none());
        let names = |s: &ModelSource| s.tensors().map(|i| i.name.clone()).collect::<Vec<_>>();
        let (mut found, mut expected) = (names(&decoded), names(&source()));
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        let numerics = if rotate { Numerics::Fast } else { Numerics::Exact };
        let expected: Vec<f32> = weight(&packed, QUERY, numerics)
            .into_iter()
            .map(|w| bf16::from_f32(w).to_f32())
            .collect();
        assert_eq!(decoded.read_f32(&format!("{QUERY}.weight")).unwrap(), expected);
        let error = decode(&decoded, &dense, WriterOptions::default(), &|_| {}).unwrap_err();
        assert!(matches!(error, QuantizeError::NotQuantized));
    }
}

/// Runs until `events` events were seen, then unwinds out of the pipeline.
fn interrupted(out: &Path, options: &QuantizeOptions, events: usize) -> bool {
    let seen = AtomicUsize::new(0);
    let stop = |_: Event| {
        assert!(seen.fetch_add(1, Ordering::Relaxed) < events, "interrupted on purpose");
    };
    catch_unwind(AssertUnwindSafe(|| quantize(&source(), out, options, &stop))).is_err()
}

#[test]
fn an_interrupted_run_continues_to_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let whole = directory.path().join("whole");
    run(&source(), &whole, &options());
    let expected = files(&whole);
    let out = directory.path().join("out");
    let mut interruptions = 0;
    for (events, threads) in [(5, 1), (60, 2), (200, 3), (400, 1), (700, 2), (1000, 3)] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        interruptions += usize::from(pool.install(|| interrupted(&out, &options(), events)));
        assert!(!out.exists() || interruptions < 6);
    }
    assert!(interruptions >= 3, "{interruptions}");
    run(&source(), &out, &options());
    assert_eq!(files(&out), expected);
    // The same call again finds the finished output.
    let before = fs::metadata(out.join("config.json")).unwrap().modified().unwrap();
    run(&source(), &out, &options());
    assert_eq!(fs::metadata(out.join("config.json")).unwrap().modified().unwrap(), before);
}

#[test]
fn parts_and_outputs_of_another_run_are_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    assert!(interrupted(&out, &options(), 300));
    let other = QuantizeOptions { bits: 2, ..options() };
    let error = quantize(&source(), &out, &other, &|_| {}).unwrap_err();
    let QuantizeError::OtherRun { difference, .. } = &error else { panic!("{error}") };
    assert_eq!(difference, "options.bits was 3, now 2");
    run(&source(), &out, &QuantizeOptions { resume: false, ..other.clone() });
    let error = quantize(&source(), &out, &options(), &|_| {}).unwrap_err();
    assert!(matches!(error, QuantizeError::OutputExists { .. }), "{error}");
    let manifest = run(&source(), &out, &QuantizeOptions { overwrite: true, ..options() });
    assert_eq!(manifest.options.bits, 3);
}

#[test]
fn sharded_output_holds_the_same_tensors() {
    let directory = tempfile::tempdir().unwrap();
    let (one, many) = (directory.path().join("one"), directory.path().join("many"));
    run(&source(), &one, &options());
    run(&source(), &many, &QuantizeOptions { max_shard_bytes: 400_000, ..options() });
    let shards = files(&many).keys().filter(|n| n.ends_with(".safetensors")).count();
    assert!(shards > 3, "{shards}");
    let (one, many) =
        (ModelSource::open_path(&one).unwrap(), ModelSource::open_path(&many).unwrap());
    assert_eq!(one.tensors().count(), many.tensors().count());
    for info in one.tensors() {
        let (a, b) = (one.raw(&info.name).unwrap(), many.raw(&info.name).unwrap());
        assert_eq!(a.bytes(), b.bytes(), "{}", info.name);
    }
}

#[test]
fn what_cannot_be_coded_is_refused_before_any_work() {
    let include = |pattern: &str| vec![pattern.to_owned()];
    let error = fails(&QuantizeOptions { include: include("nothing"), ..options() });
    assert!(matches!(error, QuantizeError::NothingToCode), "{error}");
    let error = fails(&QuantizeOptions { include: include("a{"), ..options() });
    assert!(matches!(error, QuantizeError::Glob { .. }), "{error}");
    let error = fails(&QuantizeOptions { bits: 9, ..options() });
    assert!(matches!(error, QuantizeError::Options(_)), "{error}");
    let error = fails(&QuantizeOptions { block_len: Some(128), ..options() });
    assert!(error.to_string().contains("down_proj.weight"), "{error}");
    let error = fails(&QuantizeOptions { passes: 1, ..options() });
    assert!(matches!(error, QuantizeError::Options(_)), "{error}");
}

/// A directory with one linear layer of `shape`, f32.
fn one_layer(directory: &Path, shape: [usize; 2], weights: &[f32]) -> ModelSource {
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join("config.json"), "{}").unwrap();
    let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.into(), &bytes);
    let tensors = [(format!("{QUERY}.weight"), view.unwrap())];
    let file = directory.join("model.safetensors");
    safetensors::serialize_to_file(tensors, None, &file).unwrap();
    ModelSource::open_path(directory).unwrap()
}

#[test]
fn weights_that_are_not_finite_are_named() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let directory = tempfile::tempdir().unwrap();
        let mut weights = vec![0.5; 64 * 64];
        weights[1234] = bad;
        let source = one_layer(&directory.path().join("in"), [64, 64], &weights);
        let out = directory.path().join("out");
        let options = QuantizeOptions { include: vec![], ..options() };
        let error = quantize(&source, &out, &options, &|_| {}).unwrap_err();
        let QuantizeError::NonFinite { tensor, index: 1234, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(tensor, &format!("{QUERY}.weight"));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}

#[test]
fn weights_past_the_range_of_scales_leave_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let source = one_layer(&directory.path().join("in"), [64, 64], &[1e9; 64 * 64]);
    let out = directory.path().join("out");
    let options = QuantizeOptions { include: vec![], rotate: false, ..options() };
    let error = quantize(&source, &out, &options, &|_| {}).unwrap_err();
    assert!(error.to_string().contains(QUERY), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn widths_without_a_block_length_are_refused_with_advice() {
    let directory = tempfile::tempdir().unwrap();
    let source = one_layer(directory.path(), [50, 64], &[0.1; 50 * 64]);
    let options = QuantizeOptions { include: vec![], ..options() };
    let out = directory.path().join("out");
    let error = quantize(&source, &out, &options, &|_| {}).unwrap_err();
    assert!(matches!(error, QuantizeError::NoBlockLength { cols: 50, .. }), "{error}");
    assert!(error.to_string().contains("--exclude"), "{error}");
    let axis = AxisChoice::Fixed(Axis::In);
    let manifest = run(&source, &out, &QuantizeOptions { axis, ..options });
    assert_eq!(manifest.layers[QUERY].rotation, Some([64, 2]));
}

fn tokens(model: &ModelSource) -> Vec<u32> {
    let text = fs::read_to_string(tiny().join("../../data/calibration.txt")).unwrap();
    let tokenizer = Tokenizer::from_files(model.sidecar_files(), model.config()).unwrap();
    tokenizer.encode(&text, false).unwrap()
}

/// Hessians of the tiny model over a few windows, in a file.
fn calibrate(path: &Path) {
    let source = source();
    let model = Model::load(&source, &LoadOptions::default()).unwrap();
    let tokens = tokens(&source);
    let windows: Vec<&[u32]> = tokens.chunks_exact(256).take(8).collect();
    let hessians = Hessians::collect(&model, &windows, &|_| {}).unwrap();
    hessians.save(path, &tokens).unwrap();
}

#[test]
fn hessians_are_means_of_outer_products_of_the_inputs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h.safetensors");
    calibrate(&path);
    let file = HessianFile::open(&path).unwrap();
    assert_eq!(file.info.tokens["model.layers.5.mlp.down_proj"], 8 * 256);
    assert!(file.info.dropped.values().all(|d| *d == 0));
    // The input of the first layer by hand, in f64, from one window after another.
    let source = source();
    let model = Model::load(&source, &LoadOptions::default()).unwrap();
    let mut sum = vec![0.0f64; 192 * 192];
    for window in tokens(&source).chunks_exact(256).take(8) {
        let mut cache = model.new_cache();
        let mut steps = [SequenceStep { cache: &mut cache, tokens: window }];
        model
            .forward_observed(&mut steps, &RuntimeOptions::default(), &mut |layer, input, x| {
                if (layer, input) == (0, LayerInput::Attention) {
                    for row in x.chunks_exact(192) {
                        for (n, sum) in sum.iter_mut().enumerate() {
                            *sum += f64::from(row[n / 192]) * f64::from(row[n % 192]);
                        }
                    }
                }
            })
            .unwrap();
    }
    let found = file.hessian("model.layers.0.self_attn.k_proj", 192).unwrap().unwrap();
    let scale = sum.iter().fold(0.0f64, |m, s| m.max(s.abs())) / 2048.0;
    for (found, sum) in found.iter().zip(&sum) {
        assert!((found - sum / 2048.0).abs() < 1e-5 * scale);
    }
    assert!(file.hessian("model.layers.0.self_attn.k_proj", 64).is_err());
    assert!(file.hessian("model.layers.99.self_attn.k_proj", 64).unwrap().is_none());
    assert!(HessianFile::open(&tiny().join("model.safetensors")).is_err());
}

/// Windows of the calibration text.
fn windows(count: usize) -> Vec<Vec<u32>> {
    tokens(&source()).chunks_exact(128).take(count).map(<[u32]>::to_vec).collect()
}

#[test]
fn weighted_hessians_are_means_by_lengths_of_gradients() {
    let model = Model::load(&source(), &LoadOptions::default()).unwrap();
    let windows = windows(2);
    let views: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
    let hessians = Hessians::collect_weighted(&model, &views, 7, &|_| {}).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h.safetensors");
    hessians.save(&path, &windows.concat()).unwrap();
    // One layer by hand in f64.
    let (mut sum, mut total, mut outputs) = (vec![0.0f64; 192 * 192], 0.0, vec![0.0f64; 192]);
    for (index, window) in windows.iter().enumerate() {
        let options = RuntimeOptions::default();
        model
            .gradients(window, 7 + index as u64, &options, &mut |seen| {
                if (seen.layer, seen.site) != (0, LinearSite::AttentionOutput) {
                    return;
                }
                let rows = seen.input.chunks_exact(192).zip(seen.gradient.chunks_exact(192));
                for (x, g) in rows {
                    let squares = g.iter().map(|g| f64::from(*g).powi(2));
                    outputs.iter_mut().zip(squares.clone()).for_each(|(o, s)| *o += s);
                    let weight = squares.sum::<f64>().sqrt();
                    total += weight;
                    for (n, sum) in sum.iter_mut().enumerate() {
                        *sum += weight * f64::from(x[n / 192]) * f64::from(x[n % 192]);
                    }
                }
            })
            .unwrap();
    }
    let file = HessianFile::open(&path).unwrap();
    assert!(file.info.weighted);
    let layer = "model.layers.0.self_attn.o_proj";
    let close = |found: &[f64], expected: &[f64], by: f64| {
        let scale = expected.iter().fold(0.0f64, |m, e| m.max(e.abs())) / by;
        found.iter().zip(expected).all(|(f, e)| (f - e / by).abs() < 1e-5 * scale)
    };
    assert!(close(&file.hessian(layer, 192).unwrap().unwrap(), &sum, total));
    assert!(close(&file.outputs(layer, 192).unwrap().unwrap(), &outputs, 1.0));
    assert!(file.outputs(layer, 64).is_err());
}

#[test]
fn calibrated_runs_give_the_same_bytes_with_any_number_of_threads_and_any_way() {
    let directory = tempfile::tempdir().unwrap();
    let windows = windows(3);
    let collect = Some(HessianSource::Collect { windows: windows.clone(), vocab_limit: None });
    let mut results = Vec::new();
    for threads in [1, 3] {
        let out = directory.path().join(format!("threads-{threads}"));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let options = QuantizeOptions { hessians: collect.clone(), ..options() };
        let manifest = pool.install(|| run(&source(), &out, &options));
        assert!(manifest.options.weighted_hessians);
        results.push(out);
    }
    assert_eq!(files(&results[0]), files(&results[1]));
    // The same from a file that was made before.
    let model = Model::load(&source(), &LoadOptions::default()).unwrap();
    let views: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
    let path = directory.path().join("h.safetensors");
    let hessians = Hessians::collect_weighted(&model, &views, 0, &|_| {}).unwrap();
    hessians.save(&path, &windows.concat()).unwrap();
    let out = directory.path().join("from-file");
    let hessians = Some(HessianSource::File(path));
    run(&source(), &out, &QuantizeOptions { hessians, ..options() });
    assert_eq!(files(&results[0]), files(&out));
    // Layers that read one input share its scales, although each has a Hessian of its own.
    let packed = ModelSource::open_path(&out).unwrap();
    let su = |name: &str| packed.read_f32(&format!("model.layers.1.{name}.su")).unwrap();
    assert_eq!(su("self_attn.q_proj"), su("self_attn.v_proj"));
    assert_eq!(su("mlp.gate_proj"), su("mlp.up_proj"));
}

#[test]
fn feedback_lowers_the_error_of_outputs_with_any_number_of_threads() {
    let directory = tempfile::tempdir().unwrap();
    let hessians = directory.path().join("h.safetensors");
    calibrate(&hessians);
    let plain = directory.path().join("plain");
    run(&source(), &plain, &options());
    let options =
        QuantizeOptions { hessians: Some(HessianSource::File(hessians.clone())), ..options() };
    let mut results = Vec::new();
    for threads in [1, 3] {
        let out = directory.path().join(format!("feedback-{threads}"));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run(&source(), &out, &options));
        results.push(out);
    }
    assert_eq!(files(&results[0]), files(&results[1]));
    let file = HessianFile::open(&hessians).unwrap();
    for name in ["self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"] {
        let path = format!("model.layers.1.{name}");
        let (before, after) = (loss(&file, &plain, &path), loss(&file, &results[0], &path));
        assert!(after < 0.7 * before, "{path}: {after} against {before}");
    }
}

#[test]
fn budgets_are_kept_and_spent_where_it_costs_most() {
    let directory = tempfile::tempdir().unwrap();
    let hessians = Some(HessianSource::Collect { windows: windows(3), vocab_limit: None });
    let options = QuantizeOptions { hessians, budget: Some(Budget::AverageBits(2.5)), ..options() };
    let manifest = run(&source(), &directory.path().join("average"), &options);
    let widths = || manifest.layers.values().map(|l| l.bits);
    let weights = |l: &LayerReport| (l.in_features * l.out_features) as f64;
    let bits: f64 = manifest.layers.values().map(|l| weights(l) * f64::from(l.bits)).sum();
    let average = bits / manifest.totals.coded_weights as f64;
    assert!(average <= 2.5 && average > 2.3, "{average}");
    assert!(widths().max() > widths().min());
    // All tensors together within a size, and with little left over.
    let budget = manifest.totals.coded_bytes + manifest.totals.dense_bytes;
    let total = QuantizeOptions { budget: Some(Budget::TotalBytes(budget)), ..options.clone() };
    let totals = run(&source(), &directory.path().join("total"), &total).totals;
    let found = totals.coded_bytes + totals.dense_bytes;
    assert!(found <= budget && found > budget * 98 / 100, "{found} of {budget}");
    let error = fails(&QuantizeOptions { hessians: None, ..options.clone() });
    assert!(matches!(error, QuantizeError::BudgetWithoutHessians), "{error}");
    let error =
        fails(&QuantizeOptions { budget: Some(Budget::TotalBytes(1000)), ..options.clone() });
    assert!(matches!(error, QuantizeError::BudgetTooSmall { .. }), "{error}");
    let axis = AxisChoice::Fixed(Axis::In);
    let error = fails(&QuantizeOptions { axis, ..options.clone() });
    assert!(matches!(error, QuantizeError::BudgetAxis), "{error}");
    let error = fails(&QuantizeOptions { budget: Some(Budget::AverageBits(9.0)), ..options });
    assert!(
        matches!(error, QuantizeError::AverageBits(_) | QuantizeError::OtherRun { .. }),
        "{error}"
    );
}

#[test]
fn channel_scales_lower_the_error_of_outputs() {
    let directory = tempfile::tempdir().unwrap();
    let hessians = directory.path().join("h.safetensors");
    calibrate(&hessians);
    let file = HessianFile::open(&hessians).unwrap();
    let options =
        QuantizeOptions { hessians: Some(HessianSource::File(hessians.clone())), ..options() };
    let [with, without] = [true, false].map(|channel_scales| {
        let out = directory.path().join(channel_scales.to_string());
        run(&source(), &out, &QuantizeOptions { channel_scales, ..options.clone() });
        out
    });
    let ratios =
        ["self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"].map(|name| {
            let path = format!("model.layers.1.{name}");
            loss(&file, &with, &path) / loss(&file, &without, &path)
        });
    assert!(ratios.iter().sum::<f64>() / 4.0 < 0.97, "{ratios:?}");
    // Layers that read one input share its scales.
    let packed = ModelSource::open_path(&with).unwrap();
    let su = |name: &str| packed.read_f32(&format!("model.layers.1.{name}.su")).unwrap();
    assert_eq!(su("self_attn.q_proj"), su("self_attn.v_proj"));
    assert_eq!(su("mlp.gate_proj"), su("mlp.up_proj"));
    assert!(su("mlp.up_proj").iter().any(|s| s.abs() != 1.0));
}

/// Error of a layer's outputs on the calibration inputs: tr(E H E^T), in f64.
fn loss(file: &HessianFile, out: &Path, path: &str) -> f64 {
    let packed = ModelSource::open_path(out).unwrap();
    let original = source().read_f32(&format!("{path}.weight")).unwrap();
    let decoded = weight(&packed, path, Numerics::Fast);
    let dim = source().info(&format!("{path}.weight")).unwrap().shape[1];
    let h = file.hessian(path, dim).unwrap().unwrap();
    let errors: Vec<f64> = original.iter().zip(&decoded).map(|(a, b)| f64::from(a - b)).collect();
    let row = |e: &[f64]| -> f64 {
        (0..dim).map(|i| e[i] * (0..dim).map(|j| h[i * dim + j] * e[j]).sum::<f64>()).sum()
    };
    errors.chunks_exact(dim).map(row).sum::<f64>()
}
