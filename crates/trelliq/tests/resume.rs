//! A run that is killed at any moment goes on to the same bytes, with any number of threads.
#![cfg(unix)]

mod common;

use common::{contents, quantize_args, succeed, tiny, trelliq};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

const OPTIONS: &str = "--bits 3 --state-bits 10 --embed-bits 4 --max-shard-size 300K";
const POINTS: usize = 10;

/// Starts a run and kills it with SIGKILL after `delay`; whether it was still running.
fn kill_after(out: &Path, threads: usize, delay: Duration) -> bool {
    let options = format!("{OPTIONS} --threads {threads}");
    let mut child = trelliq(quantize_args(&tiny(), out, &options))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    thread::sleep(delay);
    child.kill().unwrap();
    !child.wait().unwrap().success()
}

#[test]
fn killed_at_ten_random_points_it_ends_in_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = folder.path().join("undisturbed");
    let started = Instant::now();
    succeed(quantize_args(&tiny(), &undisturbed, &format!("{OPTIONS} --threads 2")));
    let time = started.elapsed();
    let expected = contents(&undisturbed);
    assert!(expected.len() > 6, "several shards: {:?}", expected.keys());
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut killed = 0;
    for point in 0..POINTS {
        let out = folder.path().join(format!("killed-{point}"));
        let delay = time.mul_f64(rng.random_range(0.0..1.0));
        killed += usize::from(kill_after(&out, 1 + point % 3, delay));
        let threads = 1 + (point + 1) % 3;
        succeed(quantize_args(&tiny(), &out, &format!("{OPTIONS} --threads {threads}")));
        assert!(contents(&out) == expected, "killed after {delay:?}: other bytes");
        fs::remove_dir_all(&out).unwrap();
    }
    assert!(killed >= POINTS / 2, "only {killed} runs were still running when killed");
    let left: Vec<_> = contents_names(folder.path());
    assert_eq!(left, ["undisturbed"], "nothing else is left behind");
}

#[test]
fn parts_of_a_run_with_other_options_are_refused_unless_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let partial = folder.path().join("out.partial");
    let mut delay = Duration::from_millis(100);
    while !partial.exists() {
        kill_after(&out, 1, delay);
        assert!(!out.exists(), "the run ended before it left any parts");
        delay += Duration::from_millis(50);
    }
    let other = "--bits 2 --state-bits 8";
    let error = common::fail(1, quantize_args(&tiny(), &out, other));
    assert!(error.contains("out.partial") && error.contains("--resume off"), "{error}");
    succeed(quantize_args(&tiny(), &out, &format!("{other} --resume off")));
    assert_eq!(contents_names(folder.path()), ["out"]);
}

#[test]
fn a_finished_run_is_not_repeated_and_another_result_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let options = "--bits 2 --state-bits 6";
    succeed(quantize_args(&tiny(), &out, options));
    let before = contents(&out);
    let written = fs::metadata(out.join("config.json")).unwrap().modified().unwrap();
    succeed(quantize_args(&tiny(), &out, options));
    assert_eq!(fs::metadata(out.join("config.json")).unwrap().modified().unwrap(), written);
    let error = common::fail(1, quantize_args(&tiny(), &out, "--bits 1 --state-bits 6"));
    assert!(error.contains("--overwrite"), "{error}");
    assert!(contents(&out) == before);
    succeed(quantize_args(&tiny(), &out, "--bits 1 --state-bits 6 --overwrite"));
    assert!(contents(&out) != before);
}

fn contents_names(folder: &Path) -> Vec<String> {
    let names =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
