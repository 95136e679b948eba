//! The whole run: check, code tensor by tensor, assemble, rename.

use crate::assemble::{self, CodedLayer};
use crate::budget;
use crate::check::check_source;
use crate::encode::encode_layer;
use crate::hessian::{CalibrationId, HessianFile, Hessians, tokens_sha256};
use crate::manifest::{MANIFEST_FILE, Manifest, SourceFile, Totals};
use crate::options::{Budget, HessianSource, RecordedOptions};
use crate::parts::{self, Parts};
use crate::plan::{LayerPlan, plan};
use crate::{AxisChoice, Event, Progress, QuantizeError, QuantizeOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use trelliq_format::ModelSource;
use trelliq_kernels::Axis;
use trelliq_model::{LoadOptions, Model};

/// The program's version, part of what decides an artifact's bytes.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Seed of the predictions that are drawn for weighted Hessians.
const CALIBRATION_SEED: u64 = 0;

/// Memory that tensors in flight may take together.
const MEMORY: usize = 1 << 30;

/// f32 values that coding under a Hessian holds for each weight: the weight, what was carried to
/// it, and a copy while it is transposed.
const FLOATS_A_WEIGHT: usize = 3;

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
    let nominal = plan(source, options, &BTreeMap::new())?;
    let files = hash_source(source, progress)?;
    let given = match &options.hessians {
        Some(HessianSource::File(path)) => Some(HessianFile::open(path)?),
        _ => None,
    };
    let calibration = match &options.hessians {
        Some(HessianSource::Collect { windows, .. }) => {
            Some(CalibrationId { tokens_sha256: tokens_sha256(&windows.concat()), weighted: true })
        }
        _ => given.as_ref().map(HessianFile::id),
    };
    check_budget(options, calibration.as_ref())?;
    let recorded = RecordedOptions::new(options, calibration.as_ref());
    let identity = as_read_back(&parts::identity(VERSION, &recorded, &files));
    if let Some(manifest) = finished(out, options, &identity)? {
        return Ok(manifest);
    }
    check_source(source, progress)?;
    let parts = Parts::open(out, options, &identity)?;
    let run = Run { source, out, options, progress };
    let result = run.calibrated(nominal, given, recorded, files, &parts);
    match &result {
        Err(error) if !error.is_final() => {}
        _ => parts.remove()?,
    }
    result
}

/// Refuses a budget that cannot be met whatever the model.
fn check_budget(
    options: &QuantizeOptions,
    calibration: Option<&CalibrationId>,
) -> Result<(), QuantizeError> {
    match options.budget {
        None => Ok(()),
        Some(Budget::AverageBits(bits)) if !(1.0..=8.0).contains(&bits) => {
            Err(QuantizeError::AverageBits(bits))
        }
        Some(_) if options.axis == AxisChoice::Fixed(Axis::In) => Err(QuantizeError::BudgetAxis),
        Some(_) if calibration.is_none_or(|id| !id.weighted) => {
            Err(QuantizeError::BudgetWithoutHessians)
        }
        Some(_) => Ok(()),
    }
}

/// What is the same throughout a run.
struct Run<'a> {
    source: &'a ModelSource,
    out: &'a Path,
    options: &'a QuantizeOptions,
    progress: Progress<'a>,
}

impl Run<'_> {
    /// Collects Hessians where that is asked for, gives every layer its width, and codes.
    fn calibrated(
        &self,
        nominal: Vec<LayerPlan>,
        given: Option<HessianFile>,
        recorded: RecordedOptions,
        files: Vec<SourceFile>,
        parts: &Parts,
    ) -> Result<Manifest, QuantizeError> {
        let Run { source, out, options, progress } = *self;
        let hessians = match (&options.hessians, given) {
            (Some(HessianSource::Collect { windows, vocab_limit }), _) => {
                let load = LoadOptions { vocab_limit: *vocab_limit, ..LoadOptions::default() };
                Some(collected(source, &load, &parts.hessians(), windows, progress)?)
            }
            (_, given) => given,
        };
        let hessians = hessians.as_ref();
        let plans = match (options.budget, hessians) {
            (Some(budget), Some(hessians)) => {
                let (_, dense) = assemble::dense_totals(source, &nominal)?;
                let widths =
                    budget::widths(source, &nominal, options, budget, hessians, dense, progress)?;
                plan(source, options, &widths)?
            }
            // A budget without Hessians was refused.
            _ => nominal,
        };
        Job { source, out, options, plans: &plans, hessians, progress }.run(recorded, files, parts)
    }
}

/// The file of Hessians at `path`: what an earlier run of the same identity left there, or new ones.
fn collected(
    source: &ModelSource,
    load: &LoadOptions,
    path: &Path,
    windows: &[Vec<u32>],
    progress: Progress,
) -> Result<HessianFile, QuantizeError> {
    if !path.exists() {
        let model = Model::load(source, load)?;
        let views: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
        let hessians = Hessians::collect_weighted(&model, &views, CALIBRATION_SEED, progress)?;
        hessians.save(path, &windows.concat())?;
    }
    HessianFile::open(path)
}

/// What a run works on.
struct Job<'a> {
    source: &'a ModelSource,
    out: &'a Path,
    options: &'a QuantizeOptions,
    plans: &'a [LayerPlan],
    hessians: Option<&'a HessianFile>,
    progress: Progress<'a>,
}

impl Job<'_> {
    fn run(
        &self,
        options: RecordedOptions,
        files: Vec<SourceFile>,
        parts: &Parts,
    ) -> Result<Manifest, QuantizeError> {
        let Job { source, plans, hessians, progress, .. } = *self;
        let total = plans.iter().map(|p| p.weights() as u64).sum();
        progress(Event::Stage { name: "code", total });
        let code = |index: usize| -> Result<(), QuantizeError> {
            let plan = &plans[index];
            progress(Event::Tensor(&plan.path));
            if parts.load(index, plan)?.is_some() {
                progress(Event::Advance(plan.weights() as u64));
                return Ok(());
            }
            parts.store(index, &encode_layer(source, plan, self.options, hessians, progress)?)
        };
        // Feedback codes one channel at a time, which keeps one thread busy: many tensors go at once.
        // Without it a tensor's rows keep all threads busy.
        let workers = if hessians.is_some() { workers(plans.iter()) } else { 1 };
        for_each(plans.len(), workers, &code)?;
        let mut coded = Vec::with_capacity(plans.len());
        for (index, plan) in plans.iter().enumerate() {
            let part = parts.load(index, plan)?.ok_or_else(|| QuantizeError::Part {
                path: self.out.to_owned(),
                reason: format!("the part of {} vanished", plan.path),
            })?;
            coded.push(CodedLayer { plan, part });
        }
        let layers: BTreeMap<_, _> =
            coded.iter().map(|c| (c.plan.path.clone(), c.part.report.clone())).collect();
        let dense = assemble::dense_totals(source, plans)?;
        let totals = Totals::new(&layers, dense);
        let manifest = Manifest { version: VERSION.into(), options, source: files, layers, totals };
        assemble::write_model(source, self.out, self.options, &coded, &manifest, progress)?;
        Ok(manifest)
    }
}

/// A value as it comes back from a file.
fn as_read_back(value: &Value) -> Value {
    serde_json::from_str(&value.to_string()).expect("JSON that was just printed")
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

/// Tensors that are coded at once under Hessians: one a thread, as far as memory allows.
pub(crate) fn workers<'a>(plans: impl Iterator<Item = &'a LayerPlan>) -> usize {
    let bytes =
        |plan: &LayerPlan| FLOATS_A_WEIGHT * 4 * plan.weights() + 20 * plan.in_features.pow(2);
    let largest = plans.map(bytes).max().unwrap_or(1);
    (MEMORY / largest).clamp(1, rayon::current_num_threads())
}

/// Calls `work` for 0..count on `workers` threads, each a rayon pool of its own where there are
/// several. Stops at the first error.
pub(crate) fn for_each(
    count: usize,
    workers: usize,
    work: &(dyn Fn(usize) -> Result<(), QuantizeError> + Sync),
) -> Result<(), QuantizeError> {
    if workers == 1 {
        return (0..count).try_for_each(work);
    }
    let next = AtomicUsize::new(0);
    let worker = || -> Result<(), QuantizeError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
        let pool = pool.map_err(|e| QuantizeError::Threads(e.to_string()))?;
        pool.install(|| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return Ok(());
                }
                work(index).inspect_err(|_| next.store(count, Ordering::Relaxed))?;
            }
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        // All threads are joined before the first error is returned.
        results.collect::<Vec<_>>().into_iter().collect()
    })
}
