//! Opening models by what the command line calls them.

use crate::commands::{Placement, Repack};
use crate::progress;
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use trelliq_format::{HubOptions, HubProgress, ModelSource, TensorInfo};
use trelliq_model::{DeviceChoice, LoadOptions, Model, Tokenizer};
use trelliq_server::engine::available_memory;

/// A model that is ready to run, and the files that it came from.
pub struct Loaded {
    pub source: ModelSource,
    pub model: Model,
    pub tokenizer: Tokenizer,
}

/// Opens a directory, a GGUF file or a repository, which is downloaded with progress bars.
pub fn open(spec: &str) -> Result<ModelSource> {
    if Path::new(spec).exists() || !may_be_repository(spec) {
        return Ok(ModelSource::open(spec)?);
    }
    let options = HubOptions { progress: Some(Arc::new(download_bar())), ..HubOptions::default() };
    ModelSource::open_hub(spec, &options).with_context(|| {
        format!("`{spec}` is not a file or directory here, nor a repository to fetch")
    })
}

/// Opens a model and loads it with its tokenizer; says where it runs unless that is the CPU as ever.
pub fn load(spec: &str, placement: Placement) -> Result<Loaded> {
    let source = open(spec)?;
    let spinner = progress::spinner(format!("loading {spec}"));
    let in_model = || format!("cannot load {spec}");
    let tokenizer = Tokenizer::from_files(source.sidecar_files(), source.config());
    let tokenizer = tokenizer.with_context(in_model)?;
    // A padded vocabulary has rows of logits that no text trained.
    let vocab_limit = Some(tokenizer.vocab_size());
    let options = LoadOptions {
        repack: repacks(&source, placement.repack),
        carrier: placement.carrier,
        vocab_limit,
        device: placement.device.unwrap_or(DeviceChoice::Auto),
    };
    let model = Model::load(&source, &options).with_context(in_model)?;
    spinner.finish_and_clear();
    say_where(spec, &model, placement.device.is_some());
    Ok(Loaded { source, model, tokenizer })
}

fn say_where(spec: &str, model: &Model, asked: bool) {
    if let Some(name) = model.gpu_name() {
        eprintln!("{spec} runs on {name}");
    }
    match model.gpu_refusal() {
        Some(reason) if asked || !reason.is_no_gpu() => {
            eprintln!("{spec} runs on the CPU: {reason}");
        }
        Some(reason) => tracing::info!("{spec} runs on the CPU: {reason}"),
        None => {}
    }
}

/// Whether codes are to be copied: `auto` leaves at least half of the memory that is free.
fn repacks(source: &ModelSource, when: Repack) -> bool {
    match when {
        Repack::On => true,
        Repack::Off => false,
        Repack::Auto => {
            let bytes: usize = source.tensors().map(TensorInfo::bytes).sum();
            available_memory().is_none_or(|free| bytes as u64 <= free / 2)
        }
    }
}

/// One slash and no sign of a path: `owner/name`.
fn may_be_repository(spec: &str) -> bool {
    let path = spec.starts_with(['.', '/', '~']) || spec.ends_with(".gguf");
    !path && spec.matches('/').count() == 1
}

fn download_bar() -> impl Fn(HubProgress<'_>) + Send + Sync {
    let current: Mutex<Option<ProgressBar>> = Mutex::new(None);
    move |event| {
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            HubProgress::Start { file, bytes } => {
                let bar = progress::bar("fetch", bytes);
                bar.set_message(file.to_owned());
                *current = Some(bar);
            }
            HubProgress::Advance { bytes } => {
                current.iter().for_each(|bar| bar.inc(bytes));
            }
            HubProgress::Finish => {
                current.take().iter().for_each(ProgressBar::finish_and_clear);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::may_be_repository;

    #[test]
    fn paths_are_not_taken_for_repositories() {
        for path in ["model.gguf", "models/x.gguf", "./a", "/a/b", "~/a", "a", "a/b/c"] {
            assert!(!may_be_repository(path), "{path}");
        }
        assert!(may_be_repository("owner/name") && may_be_repository("owner/name@v1"));
    }
}
