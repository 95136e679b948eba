//! The directory beside the output that holds finished parts of a run, so that the same command
//! continues it after any interruption. A part has its final name only once it is whole on disk.

use crate::encode::EncodedLayer;
use crate::manifest::{LayerReport, SourceFile};
use crate::options::RecordedOptions;
use crate::plan::LayerPlan;
use crate::{QuantizeError, QuantizeOptions};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// Key of a part's metadata that holds its [`LayerReport`].
const REPORT: &str = "report";

/// An open, locked directory of parts.
#[derive(Debug)]
pub(crate) struct Parts {
    directory: PathBuf,
    /// Held for the life of the run, so that a second one refuses to share the directory.
    _lock: File,
}

/// A finished part: a safetensors file and what its header says.
#[derive(Debug)]
pub(crate) struct Part {
    pub path: PathBuf,
    pub tensors: Vec<PartTensor>,
    pub report: LayerReport,
}

/// One tensor of a part.
#[derive(Debug)]
pub(crate) struct PartTensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Where its data lies in the file.
    pub bytes: Range<u64>,
}

impl PartTensor {
    /// Passes the tensor's data on in pieces, so that neither it nor its pages stay in memory.
    pub fn stream(
        &self,
        path: &Path,
        take: &mut dyn FnMut(&[u8]) -> Result<(), QuantizeError>,
    ) -> Result<(), QuantizeError> {
        let mut file = File::open(path).map_err(QuantizeError::io("open", path))?;
        file.seek(SeekFrom::Start(self.bytes.start)).map_err(QuantizeError::io("read", path))?;
        let mut left = (self.bytes.end - self.bytes.start) as usize;
        let mut buffer = vec![0; PIECE.min(left)];
        while left > 0 {
            let piece = &mut buffer[..PIECE.min(left)];
            file.read_exact(piece).map_err(QuantizeError::io("read", path))?;
            take(piece)?;
            left -= piece.len();
        }
        Ok(())
    }
}

/// `OUT.partial`, beside the output so that both are on one file system.
pub(crate) fn directory(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    out.with_file_name(name)
}

/// What identifies a run: two runs with equal values give equal bytes. Compare only values that have
/// been written and read equally often, since JSON does not carry every f64 exactly.
pub(crate) fn identity(version: &str, options: &RecordedOptions, source: &[SourceFile]) -> Value {
    json!({ "version": version, "options": options, "source": source })
}

impl Parts {
    /// Creates or continues the directory for a run. A run with another identity is an error,
    /// unless `options.resume` is off: then what stands there is discarded.
    pub fn open(
        out: &Path,
        options: &QuantizeOptions,
        identity: &Value,
    ) -> Result<Self, QuantizeError> {
        let directory = directory(out);
        fs::create_dir_all(&directory).map_err(QuantizeError::io("create", &directory))?;
        let this = Self { _lock: lock(&directory)?, directory };
        let path = this.directory.join("run.json");
        let recorded: Option<Value> =
            fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        match recorded {
            Some(found) if options.resume && found == *identity => return Ok(this),
            Some(found) if options.resume => {
                let difference = difference(&found, identity, "");
                return Err(QuantizeError::OtherRun { path: this.directory, difference });
            }
            _ => this.discard_parts()?,
        }
        write_whole(&path, identity.to_string().as_bytes())?;
        Ok(this)
    }

    fn discard_parts(&self) -> Result<(), QuantizeError> {
        let error = || QuantizeError::io("clear", &self.directory);
        for entry in fs::read_dir(&self.directory).map_err(error())? {
            let path = entry.map_err(error())?.path();
            if path.extension().is_some_and(|e| e == "safetensors" || e == "tmp" || e == "json") {
                fs::remove_file(&path).map_err(QuantizeError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    fn path(&self, index: usize) -> PathBuf {
        self.directory.join(format!("{index:06}.safetensors"))
    }

    /// Where Hessians that a run collects stay until it is done.
    pub fn hessians(&self) -> PathBuf {
        self.directory.join("hessians.safetensors")
    }

    /// The finished part of layer `index` of the plan, if there is one.
    pub fn load(&self, index: usize, plan: &LayerPlan) -> Result<Option<Part>, QuantizeError> {
        let path = self.path(index);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(QuantizeError::io("open", &path)(error)),
        };
        // SAFETY: the directory is locked by this run, which never writes to a part with its final
        // name, so nothing changes the file while it is mapped.
        let map = unsafe { Mmap::map(&file) }.map_err(QuantizeError::io("map", &path))?;
        let damaged = |reason: String| QuantizeError::Part { path: path.clone(), reason };
        let (header, metadata) =
            SafeTensors::read_metadata(&map).map_err(|e| damaged(e.to_string()))?;
        let report = metadata.metadata().as_ref().and_then(|m| m.get(REPORT));
        let report = report.ok_or_else(|| damaged("it holds no report".into()))?;
        let report: LayerReport =
            serde_json::from_str(report).map_err(|e| damaged(e.to_string()))?;
        if (report.out_features, report.in_features) != (plan.out_features, plan.in_features) {
            return Err(damaged(format!("it is not of layer {}", plan.path)));
        }
        // Data starts after the header's length (8 bytes) and the header.
        let place = |offset: usize| (8 + header + offset) as u64;
        let tensors = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| PartTensor {
                name,
                dtype: info.dtype,
                shape: info.shape.clone(),
                bytes: place(info.data_offsets.0)..place(info.data_offsets.1),
            })
            .collect();
        Ok(Some(Part { path, tensors, report }))
    }

    /// Writes the part of layer `index`: to a temporary name, flushed to disk, then renamed.
    pub fn store(&self, index: usize, layer: &EncodedLayer) -> Result<(), QuantizeError> {
        let path = self.path(index);
        let temporary = path.with_extension("tmp");
        let rows = layer.scales.len();
        let view =
            |dtype, shape, bytes| TensorView::new(dtype, shape, bytes).expect("whole tensor");
        let mut tensors = vec![
            (
                "weight",
                view(
                    Dtype::U32,
                    vec![rows, layer.words.len() / rows],
                    bytemuck::cast_slice(&layer.words),
                ),
            ),
            ("scales", view(Dtype::F16, vec![rows], bytemuck::cast_slice(&layer.scales))),
        ];
        if let Some((su, sv)) = &layer.channels {
            tensors.push(("su", view(Dtype::F16, vec![su.len()], bytemuck::cast_slice(su))));
            tensors.push(("sv", view(Dtype::F16, vec![sv.len()], bytemuck::cast_slice(sv))));
        }
        let report = serde_json::to_string(&layer.report).expect("a report is plain data");
        let metadata = HashMap::from([(REPORT.to_owned(), report)]);
        serialize_to_file(tensors, Some(metadata), &temporary).map_err(|e| match e {
            safetensors::SafeTensorError::IoError(error) => {
                QuantizeError::io("write", &temporary)(error)
            }
            other => QuantizeError::Part { path: temporary.clone(), reason: other.to_string() },
        })?;
        File::open(&temporary)
            .and_then(|file| file.sync_all())
            .map_err(QuantizeError::io("flush", &temporary))?;
        fs::rename(&temporary, &path).map_err(QuantizeError::io("rename", &path))
    }

    /// Deletes the directory with all parts.
    pub fn remove(self) -> Result<(), QuantizeError> {
        fs::remove_dir_all(&self.directory).map_err(QuantizeError::io("remove", &self.directory))
    }
}

fn lock(directory: &Path) -> Result<File, QuantizeError> {
    let path = directory.join("lock");
    let file = File::create(&path).map_err(QuantizeError::io("create", &path))?;
    file.try_lock().map_err(|error| QuantizeError::io("lock", &path)(error.into()))?;
    Ok(file)
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), QuantizeError> {
    let temporary = path.with_extension("tmp");
    let write = || {
        fs::write(&temporary, bytes)?;
        File::open(&temporary)?.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(QuantizeError::io("write", path))
}

/// The first key under which two values differ, with both values.
fn difference(found: &Value, wanted: &Value, at: &str) -> String {
    if let (Value::Object(a), Value::Object(b)) = (found, wanted) {
        for (key, value) in a {
            let other = b.get(key).unwrap_or(&Value::Null);
            if value != other {
                let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                return difference(value, other, &at);
            }
        }
    }
    format!("{at} was {found}, now {wanted}")
}
