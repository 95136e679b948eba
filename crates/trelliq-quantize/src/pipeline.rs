//! The whole run: check, code tensor by tensor, assemble, rename.

use crate::assemble::{self, CodedLayer};
use crate::check::check_source;
use crate::encode::encode_layer;
use crate::manifest::{MANIFEST_FILE, Manifest, SourceFile, Totals};
use crate::options::RecordedOptions;
use crate::parts::{self, Parts};
use crate::plan::{LayerPlan, plan};
use crate::{Event, Progress, QuantizeError, QuantizeOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use trelliq_format::ModelSource;

/// The program's version, part of what decides an artifact's bytes.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Codes a model's linear layers and writes the result as directory `out`.
///
/// Finished tensors are kept in `OUT.partial` until the output is complete, so that the same call
/// continues a run that was interrupted at any moment; the result has the same bytes either way,
/// and with any number of threads (the current rayon pool's). The output appears at once, by a
/// rename. When the source itself is at fault, the parts are removed.
///
/// Memory: one tensor in f32, its codes, and chunks of bounded size.
///
/// Errors: bad options, a tensor that cannot be coded (named), an output or parts of another run,
/// and any failure to read or write (the file named).
pub fn quantize(
    source: &ModelSource,
    out: &Path,
    options: &QuantizeOptions,
    progress: Progress,
) -> Result<Manifest, QuantizeError> {
    let plans = plan(source, options)?;
    let files = hash_source(source, progress)?;
    let identity = parts::identity(VERSION, &RecordedOptions::from(options), &files);
    if let Some(manifest) = finished(out, options, &identity)? {
        return Ok(manifest);
    }
    check_source(source, progress)?;
    let parts = Parts::open(out, options, &identity)?;
    let result = run(source, out, options, &plans, files, &parts, progress);
    match &result {
        Err(error) if !error.is_final() => {}
        _ => parts.remove()?,
    }
    result
}

fn run(
    source: &ModelSource,
    out: &Path,
    options: &QuantizeOptions,
    plans: &[LayerPlan],
    files: Vec<SourceFile>,
    parts: &Parts,
    progress: Progress,
) -> Result<Manifest, QuantizeError> {
    let total = plans.iter().map(|p| p.weights() as u64).sum();
    progress(Event::Stage { name: "code", total });
    let mut coded = Vec::with_capacity(plans.len());
    for (index, plan) in plans.iter().enumerate() {
        progress(Event::Tensor(&plan.path));
        if parts.load(index, plan)?.is_none() {
            parts.store(index, &encode_layer(source, plan, options, progress)?)?;
        } else {
            progress(Event::Advance(plan.weights() as u64));
        }
        let part = parts.load(index, plan)?.ok_or_else(|| QuantizeError::Part {
            path: out.to_owned(),
            reason: format!("the part of {} vanished", plan.path),
        })?;
        coded.push(CodedLayer { plan, part });
    }
    let layers: BTreeMap<_, _> =
        coded.iter().map(|c| (c.plan.path.clone(), c.part.report.clone())).collect();
    let dense = assemble::dense_totals(source, plans)?;
    let totals = Totals::new(&layers, dense);
    let manifest = Manifest {
        version: VERSION.into(),
        options: RecordedOptions::from(options),
        source: files,
        layers,
        totals,
    };
    assemble::write_model(source, out, options, &coded, &manifest, progress)?;
    Ok(manifest)
}

/// Size and SHA-256 of every file of the source, in order.
fn hash_source(source: &ModelSource, progress: Progress) -> Result<Vec<SourceFile>, QuantizeError> {
    let size = |path: &Path| {
        fs::metadata(path).map(|m| m.len()).map_err(QuantizeError::io("inspect", path))
    };
    let paths = source.source_files();
    let sizes = paths.iter().map(|path| size(path)).collect::<Result<Vec<_>, _>>()?;
    progress(Event::Stage { name: "hash", total: sizes.iter().sum() });
    let hashes = source.sha256(&mut |bytes| progress(Event::Advance(bytes)))?;
    let file = |((path, bytes), sha256): ((&std::path::PathBuf, u64), String)| SourceFile {
        name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        bytes,
        sha256,
    };
    Ok(paths.iter().zip(sizes).zip(hashes).map(file).collect())
}

/// The manifest of an output that this very run has already written.
fn finished(
    out: &Path,
    options: &QuantizeOptions,
    identity: &Value,
) -> Result<Option<Manifest>, QuantizeError> {
    let empty = match fs::read_dir(out) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(QuantizeError::io("read", out)(error)),
    };
    if empty || options.overwrite {
        return Ok(None);
    }
    let manifest = fs::read(out.join(MANIFEST_FILE)).ok();
    let manifest = manifest.and_then(|m| serde_json::from_slice::<Manifest>(&m).ok());
    match manifest {
        Some(manifest) if manifest.identity() == *identity => {
            // Killed between the rename of the output and the removal of its parts.
            let leftover = parts::directory(out);
            if leftover.exists() {
                fs::remove_dir_all(&leftover).map_err(QuantizeError::io("remove", &leftover))?;
            }
            Ok(Some(manifest))
        }
        _ => Err(QuantizeError::OutputExists { path: out.to_owned() }),
    }
}
