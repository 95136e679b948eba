//! Broken input and full disks: an error that names the place, and nothing half-written.

mod common;

use common::{copy_tiny, fail, held_out, output, quantize_args, succeed, tiny};
use half::bf16;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const QUICK: &str = "--state-bits 6 --bits 2";

/// A folder with a copy of the tiny model in it.
fn spoilable() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy_tiny(&model);
    (folder, model)
}

/// Where a tensor's data lies in a safetensors file.
fn data_of(file: &[u8], tensor: &str) -> Range<usize> {
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let tensors = safetensors::SafeTensors::deserialize(file).unwrap();
    let data = tensors.tensor(tensor).unwrap().data().as_ptr() as usize;
    let start = data - file.as_ptr() as usize;
    assert!(start >= header);
    start..start + tensors.tensor(tensor).unwrap().data().len()
}

fn quantize_fails(model: &Path, out: &Path) -> String {
    let error = fail(1, quantize_args(model, out, QUICK));
    assert!(error.starts_with("error: ") && error.lines().count() == 1, "{error}");
    let parent = out.parent().unwrap();
    let left: Vec<_> = fs::read_dir(parent).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["model"], "something half-written remains");
    error
}

#[test]
fn weights_that_are_not_finite_are_named_with_their_index() {
    for (value, name) in [(bf16::NAN, "NaN"), (bf16::INFINITY, "inf")] {
        let (folder, model) = spoilable();
        let path = model.join("model.safetensors");
        let mut file = fs::read(&path).unwrap();
        let tensor = "model.layers.3.mlp.up_proj.weight";
        let at = data_of(&file, tensor).start + 2 * 777;
        file[at..at + 2].copy_from_slice(&value.to_le_bytes());
        fs::write(&path, file).unwrap();
        let error = quantize_fails(&model, &folder.path().join("out"));
        for part in [tensor, "777", name, "model.safetensors"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}

#[test]
fn truncated_files_are_named() {
    for keep in [0, 7, 300, 100_000] {
        let (folder, model) = spoilable();
        let path = model.join("model.safetensors");
        let file = fs::read(&path).unwrap();
        fs::write(&path, &file[..keep]).unwrap();
        let error = quantize_fails(&model, &folder.path().join("out"));
        assert!(error.contains("model.safetensors"), "{error}");
    }
}

#[test]
fn a_damaged_packed_model_is_refused_by_file_and_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("packed");
    succeed(quantize_args(&tiny(), &model, QUICK));
    let path = model.join("model.safetensors");
    let sound = fs::read(&path).unwrap();
    let (spec, text) = (model.display().to_string(), held_out().display().to_string());
    let tensor = "model.layers.2.self_attn.o_proj.scales";
    let mut file = sound.clone();
    let at = data_of(&file, tensor).start;
    file[at..at + 2].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
    fs::write(&path, file).unwrap();
    for args in
        [vec!["inspect", &spec], vec!["run", &spec, "Hi"], vec!["eval", &spec, "--text", &text]]
    {
        let error = fail(1, args);
        assert!(error.contains(tensor) && error.contains("model.safetensors"), "{error}");
    }
    fs::write(&path, &sound[..sound.len() - 1000]).unwrap();
    assert!(fail(1, ["inspect", &spec]).contains("model.safetensors"));
    fs::write(&path, sound).unwrap();
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    fs::write(model.join("config.json"), config.replace("\"1mad\"", "\"9mad\"")).unwrap();
    let error = fail(1, ["inspect", &spec]);
    assert!(error.contains("9mad") && error.contains("config.json"), "{error}");
}

#[test]
fn missing_models_and_texts_are_named() {
    assert!(fail(1, ["inspect", "no-such-model"]).contains("no-such-model"));
    assert!(fail(1, ["inspect", "./no/such"]).contains("./no/such"));
    let model = tiny().display().to_string();
    assert!(fail(1, ["eval", &model, "--text", "no-such.txt"]).contains("no-such.txt"));
    let (_folder, broken) = spoilable();
    fs::write(broken.join("config.json"), "{ \"model_type\": ").unwrap();
    assert!(fail(1, ["inspect", &broken.display().to_string()]).contains("config.json"));
}

#[test]
fn wrong_usage_exits_with_2_and_shows_what_is_right() {
    assert!(fail(2, ["quantize", "only-a-model"]).contains("Usage: trelliq quantize"));
    assert!(fail(2, ["quantize", "a", "b", "--bits", "9"]).contains("1 to 8"));
    assert!(fail(2, ["quantize", "a", "b", "--max-shard-size", "5 miles"]).contains("500M"));
    assert!(
        fail(2, ["eval", "a", "--text", "b", "--stride", "5", "--windows", "2"])
            .contains("--stride")
    );
    assert!(fail(2, ["run", "a", "--raw"]).contains("PROMPT"));
    assert_eq!(output(["--help"]).status.code(), Some(0));
}

#[test]
fn an_option_that_cannot_work_is_told_before_anything_is_written() {
    let (folder, model) = spoilable();
    let out = folder.path().join("out");
    for (options, part) in [
        ("--bits 4 --state-bits 4", "state_bits"),
        ("--block-len 100", "100"),
        ("--include nothing.like.this", "nothing to code"),
        ("--include [", "glob"),
        ("--passes 1", "at least 2"),
    ] {
        let error = fail(1, quantize_args(&model, &out, options));
        assert!(error.contains(part), "{part} is not in: {error}");
        assert!(!out.exists());
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A limit on the size of files stands in for a full disk: writes fail beyond it.
#[cfg(unix)]
#[test]
fn a_full_disk_is_an_error_that_names_the_file_and_the_run_goes_on_later() {
    let (folder, model) = spoilable();
    let out = folder.path().join("out");
    let args = quantize_args(&model, &out, QUICK);
    // dash counts in blocks of 512 bytes, bash in KiB: 250 or 500 KB, below the size of the model.
    let limited = Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 500; exec \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_trelliq"),
        ])
        .args(&args)
        .output()
        .unwrap();
    let error = String::from_utf8(limited.stderr).unwrap();
    assert_eq!(limited.status.code(), Some(1), "{error}");
    assert!(
        error.starts_with("error: cannot write ") && error.contains("model.safetensors"),
        "{error}"
    );
    assert!(!out.exists());
    succeed(&args);
    let other = folder.path().join("other");
    succeed(quantize_args(&model, &other, QUICK));
    assert!(common::contents(&out) == common::contents(&other));
}
