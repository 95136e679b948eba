//! Running the program as a user would.
#![allow(dead_code, reason = "every test file uses a part of it")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The trained model that the repository holds.
pub fn tiny() -> PathBuf {
    repository().join("tests/models/tiny")
}

/// A text that it has not seen.
pub fn held_out() -> PathBuf {
    repository().join("tests/data/held-out.txt")
}

pub fn trelliq<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trelliq"));
    command.args(args).env_remove("TRELLIQ_THREADS");
    command
}

pub fn output<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    trelliq(args).output().expect("the program starts")
}

/// Standard output of a run that must succeed.
pub fn succeed<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = output(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("output in UTF-8")
}

/// Standard error of a run that must exit with `code`.
pub fn fail<S: AsRef<OsStr>>(code: i32, args: impl IntoIterator<Item = S>) -> String {
    let output = output(args);
    let error = String::from_utf8(output.stderr).expect("output in UTF-8");
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(output.stdout.is_empty(), "a failing command printed a result");
    error
}

pub fn json<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Value {
    serde_json::from_str(&succeed(args)).expect("one JSON value")
}

/// Arguments of a quantization of `model` into `out`; `options` are split at spaces.
pub fn quantize_args(model: &Path, out: &Path, options: &str) -> Vec<String> {
    let paths = [model, out].map(|path| path.display().to_string());
    let options = options.split_whitespace().map(str::to_owned);
    ["quantize".to_owned()].into_iter().chain(paths).chain(options).collect()
}

/// Every file of a directory.
pub fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.unwrap());
    let file = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    };
    entries.map(file).collect()
}

/// A copy of the tiny model in `out` that a test may spoil.
pub fn copy_tiny(out: &Path) {
    fs::create_dir_all(out).unwrap();
    for (name, bytes) in contents(&tiny()) {
        fs::write(out.join(name), bytes).unwrap();
    }
}
