//! Quantizing takes memory by the largest tensor, not by the model.
#![cfg(target_os = "linux")]

mod common;

use common::{quantize_args, tiny};
use serde_json::{Map, json};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

const GIB: u64 = 1 << 30;
const HIDDEN: u64 = 4096;
const LAYERS: u64 = 15;
/// Feed-forward width: a matrix takes 192 MiB in f32.
const INNER: u64 = 12288;

/// A Llama of more than 8 GiB in f32 whose weights are a hole in the file: it takes no room on the disk.
fn write_sparse_model(folder: &Path) -> u64 {
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![256, HIDDEN])];
    for layer in 0..LAYERS {
        let mut add = |name: &str, shape: Vec<u64>| {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        };
        add("mlp.gate_proj", vec![INNER, HIDDEN]);
        add("mlp.up_proj", vec![INNER, HIDDEN]);
        add("mlp.down_proj", vec![HIDDEN, INNER]);
    }
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += shape.iter().product::<u64>() * 4;
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}));
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = File::create(folder.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs::read(tiny().join("config.json")).unwrap()).unwrap();
    config["hidden_size"] = HIDDEN.into();
    config["intermediate_size"] = INNER.into();
    config["num_hidden_layers"] = LAYERS.into();
    config["vocab_size"] = 256.into();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    end
}

/// Waits for a child: its exit status and the most memory that it had resident, in bytes.
fn wait_with_peak(child: Child) -> (ExitStatus, u64) {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of the plain C struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pid is that of an own child not yet waited for, both pointers are to live values.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
    assert_eq!(waited, child.id() as i32);
    (ExitStatus::from_raw(status), usage.ru_maxrss as u64 * 1024)
}

/// The whole source is hashed and checked, one layer is coded, and the dense rest is being copied
/// when a limit on the size of files ends the run, so that the test writes 512 MiB at most.
#[test]
fn memory_is_bounded_by_the_largest_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    let bytes = write_sparse_model(&model);
    assert!(bytes > 8 * GIB);
    let options = "--bits 1 --state-bits 4 --include model.layers.14.mlp.down_proj";
    let mut child = Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 524288; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_trelliq"))
        .args(quantize_args(&model, &folder.path().join("out"), options))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let errors = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    let (status, peak) = wait_with_peak(child);
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.starts_with("error: cannot write "), "{errors}");
    let largest = HIDDEN * INNER * 4;
    let limit = 3 * GIB / 2 + 2 * largest;
    assert!(peak < limit, "{peak} bytes were resident, the limit is {limit}");
}
