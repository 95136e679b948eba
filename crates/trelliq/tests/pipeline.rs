//! From the trained tiny model through every command and back.

mod common;

use common::{copy_tiny, fail, held_out, json, output, quantize_args, succeed, tiny, trelliq};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;

/// A small trellis: the same path through the program in a tenth of the time.
const QUICK: &str = "--state-bits 8";

fn quantized(folder: &TempDir, options: &str) -> PathBuf {
    let out = folder.path().join(options.replace(' ', ""));
    succeed(quantize_args(&tiny(), &out, &format!("{QUICK} {options}")));
    out
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// `eval` of a model against a reference on a few windows of the held-out text.
fn eval(model: &Path, reference: &Path, options: &[&str]) -> Value {
    let (model, reference, held_out) = (text(model), text(reference), text(&held_out()));
    let fixed = ["eval", &model, "--reference", &reference, "--text", &held_out, "--json"];
    json(fixed.iter().chain(&["--windows", "3", "--window", "256"]).chain(options))
}

fn kl(report: &Value) -> f64 {
    report["kl_mean"].as_f64().expect("a number")
}

#[test]
fn the_divergence_falls_with_every_bit() {
    let folder = tempfile::tempdir().unwrap();
    let measure = |options: &str| kl(&eval(&quantized(&folder, options), &tiny(), &[]));
    let rotated: Vec<f64> = (1..=6).map(|bits| measure(&format!("--bits {bits}"))).collect();
    assert!(rotated.is_sorted_by(|more, less| more > less), "{rotated:?}");
    assert!(rotated[5] < 0.01 && rotated[5] > 0.0, "{rotated:?}");
    let plain: Vec<f64> =
        [2, 4].map(|bits| measure(&format!("--bits {bits} --rotate off"))).to_vec();
    assert!(plain[0] > plain[1], "{plain:?}");
}

#[test]
fn inspect_accounts_for_every_byte_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = quantized(&folder, "--bits 3 --embed-bits 5 --exclude *.layers.0.*");
    let report = json(["inspect", &text(&model), "--json"]);
    let file = fs::read(model.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap());
    assert_eq!(report["total"]["bytes"].as_u64().unwrap(), file.len() as u64 - 8 - header);
    let tensors = report["tensors"].as_array().unwrap();
    let find = |path: &str| tensors.iter().find(|row| row["path"] == path).expect("a row");
    let down = find("model.layers.1.mlp.down_proj");
    assert_eq!(down["shape"], serde_json::json!([192, 512]));
    assert_eq!(
        (&down["type"], &down["bits"], &down["axis"]),
        (&"1mad".into(), &3.into(), &0.into())
    );
    assert_eq!((&down["state_bits"], &down["block_len"]), (&8.into(), &192.into()));
    // Codes, an f16 scale an input, and the f16 signs of both sides.
    assert_eq!(down["bytes"].as_u64(), Some(192 * 512 * 3 / 8 + 2 * 512 + 2 * (192 + 512)));
    // One block a row, and its first word again.
    assert_eq!(down["repacked_bytes"].as_u64(), Some(512 * (192 * 3 / 32 + 1) * 4));
    let error = down["relative_error"].as_f64().unwrap();
    assert!(error > 0.25f64.powi(3) && error < 0.03, "{error}");
    assert_eq!(find("model.layers.0.mlp.down_proj.weight")["type"], "BF16");
    let embedding = find("model.embed_tokens");
    assert_eq!((&embedding["bits"], &embedding["axis"]), (&5.into(), &1.into()));
    let table = succeed(["inspect", &text(&model)]);
    assert_eq!(table.lines().count(), tensors.len() + 4, "header, coded, repacked and all");
}

#[test]
fn inspect_lists_dense_models_as_well() {
    let report = json(["inspect", &text(&tiny()), "--json"]);
    assert_eq!(report["total"]["weights"].as_u64(), Some(2_755_008), "the model's README");
    assert_eq!(report["total"]["coded_weights"].as_u64(), Some(0));
    assert!(report["trellis_format"].is_null());
}

#[test]
fn a_decoded_model_is_the_packed_one() {
    let folder = tempfile::tempdir().unwrap();
    let decode = |options: &str| {
        let packed = quantized(&folder, options);
        let dense = folder.path().join("dense").join(options.replace(' ', ""));
        fs::create_dir_all(dense.parent().unwrap()).unwrap();
        succeed(["decode", &text(&packed), &text(&dense)]);
        (packed, dense)
    };
    let (packed, dense) = decode("--bits 3 --rotate off");
    let report = eval(&packed, &dense, &["--exact"]);
    // The same weights; only the order of additions differs.
    assert!(kl(&report).abs() < 1e-7, "{report}");
    let greedy = |model: &Path, exact: &[&str]| {
        let model = text(model);
        let fixed = ["run", &model, "--raw", "HAMLET.", "--max-tokens", "16"];
        succeed(fixed.iter().chain(exact))
    };
    assert_eq!(greedy(&packed, &["--exact"]), greedy(&dense, &[]));
    let (packed, dense) = decode("--bits 3");
    let report = eval(&packed, &dense, &[]);
    // bf16 keeps 8 bits of each weight: far less is lost than by coding.
    assert!(kl(&report) < 1e-3 && report["top1_agreement"].as_f64() > Some(0.98), "{report}");
    assert!(
        fail(1, ["decode", &text(&dense), &text(&folder.path().join("again"))])
            .contains("not quantized")
    );
}

#[test]
fn eval_reports_all_figures_once() {
    let report = eval(&tiny(), &tiny(), &[]);
    for zero in ["kl_mean", "kl_median", "kl_p99", "delta_p_rms"] {
        assert_eq!(report[zero].as_f64().map(f64::abs), Some(0.0), "{zero}");
    }
    assert_eq!(report["top1_agreement"].as_f64(), Some(1.0));
    assert_eq!(report["perplexity"], report["reference_perplexity"]);
    assert_eq!(report["tokens"].as_u64(), Some(3 * 255));
    let alone =
        json(["eval", &text(&tiny()), "--text", &text(&held_out()), "--json", "--stride", "700"]);
    assert!(alone.get("kl_mean").is_none(), "nothing to compare with");
}

#[test]
fn bench_prints_a_row_for_every_case() {
    let model = text(&tiny());
    let out = succeed(
        "bench --json --seconds 0.001 --shape 96x64 --bits 2-3 --m 2 --prefill-m 5 --on-threads 1,2"
            .split(' ')
            .chain([model.as_str()]),
    );
    let rows: Vec<Value> = out.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    // Seven kinds of cases of two widths, and the model's prompt and answer; on one and two threads.
    assert_eq!(rows.len(), 2 * (7 * 2 + 2));
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(number("value") > 0.0 && number("best") >= number("value"), "{row}");
        let per_core = number("value") / number("threads");
        assert!((number("per_core") - per_core).abs() <= 1e-9 * per_core, "{row}");
        let Some(coded) = row["coded_gb_per_s"].as_f64().filter(|_| row["what"] != "decode") else {
            continue;
        };
        // Each weight is read once for all rows of x.
        let expected = number("value") / number("m") * number("bits") / 8.0;
        assert!((coded - expected).abs() <= 1e-9 * expected, "{row}");
    }
    let named = |what: &str| rows.iter().filter(|row| row["what"] == what).count();
    assert_eq!((named("scatter"), named("gate_up"), named("decode")), (4, 8, 2));
    assert!(fail(1, ["bench", "--what", "decode"]).contains("MODEL"));
    assert!(fail(2, ["bench", "--shape", "64"]).contains("4096x14336"));
}

/// What holds with and without a GPU.
#[test]
fn a_device_is_chosen_or_refused_by_name() {
    let model = text(&tiny());
    let run = |device: &str| {
        ["run", &model, "--raw", "To", "--max-tokens", "2", "--device", device].map(str::to_owned)
    };
    assert!(fail(2, run("gpu")).contains("auto, cpu, cuda"));
    let missing = fail(1, run("cuda:1000"));
    assert!(missing.contains("NVIDIA") || missing.contains("GPU 1000"), "{missing}");
    let found = String::from_utf8(output(run("auto")).stderr).unwrap();
    assert!(found.contains(&format!("{model} runs on ")), "{found}");
    let quiet = String::from_utf8(output(run("cpu")).stderr).unwrap();
    assert!(!quiet.contains("runs on"), "{quiet}");
    assert_eq!(succeed(run("auto")), succeed(run("cpu")));
    let layers = ["bench", "--device", "cuda", "--what", "scatter", &model];
    assert!(fail(1, layers).contains("--device"));
}

/// Two settings on one loaded model: integers are near f32 but not equal to it, f32 is to itself.
#[test]
fn a_model_is_compared_with_itself_under_two_settings() {
    let folder = tempfile::tempdir().unwrap();
    let (model, text) = (text(&quantized(&folder, "--bits 4")), text(&held_out()));
    let report = |setting: &str| {
        // Prefill runs in f32 whatever the setting.
        let fixed =
            ["eval", &model, "--text", &text, "--json", "--set", "kernel.prefill_from=9999"];
        json(fixed.iter().chain(&["--windows", "2", "--window", "64", "--self", setting]))
    };
    let equal = report("kernel.activations=f32,f32");
    assert_eq!(equal["kl_mean"].as_f64().map(f64::abs), Some(0.0));
    assert_eq!(equal["self"], "kernel.activations=f32,f32");
    let near = report("kernel.activations=f32,int");
    assert!(kl(&near) > 0.0 && kl(&near) < 1e-4, "{near}");
    assert_ne!(near["perplexity"], near["reference_perplexity"]);
}

#[test]
fn settings_that_do_not_exist_are_told_before_the_model_loads() {
    let text = text(&held_out());
    let eval = |setting| ["eval", "no-such-model", "--text", &text, "--self", setting];
    assert!(fail(1, eval("kernel.speed=1,2")).contains("kernel.activations"));
    assert!(fail(1, eval("kernel.isa=avx2,z80")).contains("kernel.isa"));
    assert!(fail(2, eval("kernel.isa=avx2")).contains("two values"));
    let run = ["run", "no-such-model", "Hi", "--set", "kernel.activations=i4"];
    assert!(fail(1, run).contains("kernel.activations"));
}

/// The same prompt by the default of a model without a template, and written out.
#[test]
fn a_model_without_a_chat_template_is_given_plain_text() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    copy_tiny(&base);
    let file = base.join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(config.as_object_mut().unwrap().remove("chat_template").is_some());
    fs::write(&file, config.to_string()).unwrap();
    let base = text(&base);
    let run = |options: &[&str]| output(["run", &base, "--max-tokens", "16"].iter().chain(options));
    let chat = run(&["Who are you?", "--system", "A talk."]);
    assert!(String::from_utf8_lossy(&chat.stderr).contains("plain text"), "{chat:?}");
    let raw = run(&["--raw", "A talk.\n\nUser: Who are you?\n\nAssistant:"]);
    assert_eq!(chat.stdout, raw.stdout);
    let named = run(&["Who are you?", "--system", "A talk.", "--chat-template", "plain"]);
    assert_eq!((named.status.code(), named.stdout), (Some(0), chat.stdout));
    assert!(!String::from_utf8_lossy(&named.stderr).contains("warning"));
    let error = fail(1, ["run", &base, "Hi", "--chat-template", "alpaca"]);
    assert!(error.contains("`alpaca`") && error.contains("chatml"), "{error}");
}

#[test]
fn run_answers_a_prompt_and_tells_what_it_took() {
    let folder = tempfile::tempdir().unwrap();
    let model = text(&quantized(&folder, "--bits 4"));
    let run = |options: &[&str]| {
        let fixed = ["run", &model, "What is a hacker?", "--max-tokens", "12", "--json"];
        json(fixed.iter().chain(options))
    };
    let report = run(&[]);
    assert_eq!(report, {
        let mut again = run(&["--threads", "1"]);
        for rate in ["prompt_tokens_per_second", "decode_tokens_per_second"] {
            again[rate] = report[rate].clone();
        }
        again
    });
    assert!(report["generated_tokens"].as_u64() <= Some(12));
    let (a, b) = (
        run(&["--temperature", "1.5", "--seed", "1"]),
        run(&["--temperature", "1.5", "--seed", "2"]),
    );
    assert_ne!(a["text"], b["text"], "seeds draw different texts");
    let streamed = output(["run", &model, "What is a hacker?", "--max-tokens", "12"]);
    assert_eq!(String::from_utf8(streamed.stdout).unwrap().trim_end_matches('\n'), report["text"]);
    assert!(String::from_utf8(streamed.stderr).unwrap().starts_with("[prompt "));
    let stop = report["text"].as_str().unwrap().chars().skip(3).take(4).collect::<String>();
    let stopped = run(&["--stop", &stop]);
    assert_eq!(stopped["finish"], "stop_string");
    assert!(!stopped["text"].as_str().unwrap().contains(&stop));
    let error = fail(1, ["run", &model, "Hello", "--context", "4"]);
    assert!(error.contains("the context holds 4"), "{error}");
    assert!(fail(1, ["run", &model, "Hello", "--top-p", "0"]).contains("top_p"));
}

#[test]
fn a_chat_over_a_pipe_answers_each_line_and_forgets_on_reset() {
    let chat = |lines: &str| {
        let mut child = trelliq(["run", &text(&tiny()), "--max-tokens", "8"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let error = String::from_utf8(output.stderr).unwrap();
        (String::from_utf8(output.stdout).unwrap(), error)
    };
    let (once, error) = chat("What is a bug?\n");
    assert_eq!(error.matches("[prompt ").count(), 1);
    let (twice, error) = chat("What is a bug?\n\n/reset\nWhat is a bug?\n");
    assert_eq!(error.matches("[prompt ").count(), 2);
    assert_eq!(twice, once.repeat(2), "a chat that was reset starts anew");
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = succeed(["completions", shell]);
        for command in ["quantize", "inspect", "run", "eval", "decode", "validate"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
}

#[test]
fn a_reader_that_closes_early_is_no_failure() {
    let mut child = trelliq(["inspect", &text(&tiny())])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
}
