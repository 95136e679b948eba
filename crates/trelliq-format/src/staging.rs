//! A directory that is written under a temporary name beside its final one.

use crate::FormatError;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A directory being written. Dropped before it is published, it is removed.
///
/// Its name follows from the target's, so that what a killed process left is found and removed by
/// the next one; a lock keeps two living processes from the same target.
#[derive(Debug)]
pub(crate) struct Staging {
    pub path: PathBuf,
    target: PathBuf,
    overwrite: bool,
    published: bool,
    _lock: Option<File>,
}

impl Staging {
    /// Refuses when `target` exists and is not an empty directory, unless `overwrite`.
    pub fn new(target: &Path, overwrite: bool) -> Result<Self, FormatError> {
        let target = std::path::absolute(target).map_err(FormatError::io("find", target))?;
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(FormatError::OutputExists { path: target });
        };
        if !overwrite && is_occupied(&target)? {
            return Err(FormatError::OutputExists { path: target });
        }
        fs::create_dir_all(parent).map_err(FormatError::io("create", parent))?;
        let path = parent.join(format!(".{}.writing", name.to_string_lossy()));
        let lock = claim(&path)?;
        let staging =
            Self { path, target: target.clone(), overwrite, published: false, _lock: lock };
        clear(&staging.path)?;
        Ok(staging)
    }

    /// Gives the directory its final name, in one step where the target is not there yet.
    pub fn publish(mut self) -> Result<PathBuf, FormatError> {
        sync(&self.path)?;
        let target = self.target.clone();
        if is_occupied(&target)? {
            if !self.overwrite {
                return Err(FormatError::OutputExists { path: target });
            }
            self.replace()?;
        } else {
            fs::rename(&self.path, &target).map_err(FormatError::io("rename to", &target))?;
        }
        self.published = true;
        if let Some(parent) = target.parent() {
            sync(parent)?;
        }
        Ok(target)
    }

    /// Puts the directory in the place of what is there, which comes back when that fails.
    fn replace(&self) -> Result<(), FormatError> {
        let mut name = self.path.clone().into_os_string();
        name.push(".replaced");
        let replaced = PathBuf::from(name);
        remove(&replaced)?;
        fs::rename(&self.target, &replaced).map_err(FormatError::io("replace", &self.target))?;
        if let Err(source) = fs::rename(&self.path, &self.target) {
            let _ = fs::rename(&replaced, &self.target);
            return Err(FormatError::io("rename to", &self.target)(source));
        }
        remove(&replaced)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            // Already failing: the first error is the one to report.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Whether there is anything but an empty directory.
fn is_occupied(path: &Path) -> Result<bool, FormatError> {
    if !path.is_dir() {
        return Ok(path.symlink_metadata().is_ok());
    }
    let mut entries = fs::read_dir(path).map_err(FormatError::io("list", path))?;
    Ok(entries.next().is_some())
}

fn claim(path: &Path) -> Result<Option<File>, FormatError> {
    fs::create_dir_all(path).map_err(FormatError::io("create", path))?;
    if !cfg!(unix) {
        return Ok(None); // A directory cannot be opened, and so not locked.
    }
    let directory = File::open(path).map_err(FormatError::io("open", path))?;
    match directory.try_lock() {
        Ok(()) => Ok(Some(directory)),
        Err(error) => Err(FormatError::io("lock", path)(error.into())),
    }
}

fn clear(path: &Path) -> Result<(), FormatError> {
    for entry in fs::read_dir(path).map_err(FormatError::io("list", path))? {
        remove(&entry.map_err(FormatError::io("list", path))?.path())?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), FormatError> {
    let Ok(metadata) = path.symlink_metadata() else { return Ok(()) };
    let removed = if metadata.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(FormatError::io("remove", path))
}

/// Makes a directory's entries durable, where the system can.
fn sync(directory: &Path) -> Result<(), FormatError> {
    if !cfg!(unix) {
        return Ok(());
    }
    let opened = File::open(directory).map_err(FormatError::io("open", directory))?;
    opened.sync_all().map_err(FormatError::io("sync", directory))
}
