//! Kernels from source: specialized by macros, compiled by NVRTC, kept on disk.

use super::CudaError;
use cudarc::driver::sys::CUfunction_attribute::{
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
};
use cudarc::driver::{CudaContext, CudaFunction, result, sys};
use cudarc::nvrtc::{self, Ptx};
use sha2::{Digest, Sha256};
use std::ffi::CString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const COMMON: &str = include_str!("kernels/common.cuh");
const HADAMARD: &str = include_str!("kernels/hadamard.cuh");
const PACKED: &str = include_str!("kernels/packed.cuh");
const LINEAR: &str = include_str!("kernels/linear.cuh");

/// A family of kernels, that is, a source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Family {
    Decoder,
    Expand,
    Generic,
    Quantize,
    Repack,
    Rotate,
    Scatter,
    Reduce,
    Viterbi,
}

impl Family {
    /// Whether its kernels are of a decoder's steps.
    pub fn of_steps(self) -> bool {
        matches!(self, Self::Decoder | Self::Quantize | Self::Rotate | Self::Scatter | Self::Reduce)
    }

    fn parts(self) -> &'static [&'static str] {
        match self {
            Self::Decoder => &[COMMON, HADAMARD, include_str!("kernels/decoder.cu")],
            Self::Expand => &[COMMON, PACKED, include_str!("kernels/expand.cu")],
            Self::Generic => &[COMMON, PACKED, include_str!("kernels/generic.cu")],
            Self::Quantize => &[COMMON, PACKED, LINEAR, include_str!("kernels/quantize.cu")],
            Self::Repack => &[COMMON, PACKED, include_str!("kernels/repack.cu")],
            Self::Rotate => &[COMMON, HADAMARD, include_str!("kernels/rotate.cu")],
            Self::Scatter => &[COMMON, PACKED, LINEAR, include_str!("kernels/scatter.cu")],
            Self::Viterbi => &[COMMON, include_str!("kernels/viterbi.cu")],
            Self::Reduce => &[COMMON, PACKED, LINEAR, include_str!("kernels/reduce.cu")],
        }
    }
}

/// A function of a family under values for its macros.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Source {
    pub family: Family,
    pub function: &'static str,
    pub macros: Vec<(&'static str, u32)>,
}

impl Source {
    fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.macros {
            writeln!(text, "#define {name} {value}").expect("writing to a string");
        }
        for part in self.family.parts() {
            text.push_str(part);
        }
        text
    }
}

/// A loaded function; launches may ask for all shared memory of a block.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    function: CudaFunction,
}

impl Kernel {
    pub fn load(
        context: &Arc<CudaContext>,
        code: Vec<u8>,
        function: &str,
    ) -> Result<Self, CudaError> {
        let function = context.load_module(Ptx::from_binary(code))?.load_function(function)?;
        Ok(Self { function })
    }

    pub fn raw(&self) -> sys::CUfunction {
        self.function.cu_function()
    }

    /// Asks for as much shared memory of a processor as there is, whatever the kernel itself uses:
    /// neighbours on a stream that want the same split of it from the cache can overlap.
    pub fn prefer_shared(&self) -> Result<(), CudaError> {
        // SAFETY: the function is loaded, and the attribute is a hint.
        let done = unsafe {
            result::function::set_function_attribute(
                self.raw(),
                CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                sys::CUshared_carveout::CU_SHAREDMEM_CARVEOUT_MAX_SHARED as i32,
            )
        };
        Ok(done?)
    }

    /// Lets launches ask for `bytes` of dynamic shared memory, more than 48 KiB.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        // SAFETY: the function is loaded, and the attribute only raises a limit.
        let done = unsafe {
            result::function::set_function_attribute(
                self.raw(),
                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                bytes as i32,
            )
        };
        Ok(done?)
    }
}

/// Where compiled kernels are kept: `TRELLIQ_KERNEL_CACHE`, or the user's cache directory.
pub(super) fn cache_dir() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    var("TRELLIQ_KERNEL_CACHE").or_else(|| {
        let base = if cfg!(windows) {
            var("LOCALAPPDATA")
        } else {
            var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))
        };
        base.map(|base| base.join("trelliq").join("kernels"))
    })
}

/// Machine code of a source for an architecture, from the disk or compiled and put there.
pub(super) fn cubin(
    source: &Source,
    architecture: (i32, i32),
    cache: Option<&Path>,
) -> Result<Vec<u8>, CudaError> {
    let text = source.text();
    let arch = format!("--gpu-architecture=sm_{}{}", architecture.0, architecture.1);
    let options = [arch.as_str(), "--std=c++17", "--fmad=false"];
    let file = cache.map(|dir| dir.join(file_name(source, &text, &options)));
    if let Some(code) = file.as_ref().and_then(|file| std::fs::read(file).ok()) {
        return Ok(code);
    }
    // SAFETY: loads NVRTC's library, whose initialization has no preconditions.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(CudaError::NoCompiler);
    }
    let code = compile(source, &text, &options)?;
    if let Some(file) = file {
        store(&file, &code);
    }
    Ok(code)
}

fn file_name(source: &Source, text: &str, options: &[&str]) -> String {
    let mut digest = Sha256::new();
    digest.update(text);
    digest.update(options.join(" "));
    let mut name = format!("{}-", source.function);
    for byte in digest.finalize().iter().take(16) {
        write!(name, "{byte:02x}").expect("writing to a string");
    }
    name + ".cubin"
}

/// Best effort, and whole or not at all: another process may read or write the same file.
fn store(file: &Path, code: &[u8]) {
    let Some(dir) = file.parent() else { return };
    let part = file.with_extension(format!("{}.part", std::process::id()));
    if std::fs::create_dir_all(dir).is_ok() && std::fs::write(&part, code).is_ok() {
        // Lost races and full disks only cost a compilation next time.
        let _ = std::fs::rename(&part, file);
    }
}

fn compile(source: &Source, text: &str, options: &[&str]) -> Result<Vec<u8>, CudaError> {
    let failed = |log: String| CudaError::Compile { kernel: source.function.to_owned(), log };
    let text = CString::new(text).map_err(|e| failed(e.to_string()))?;
    let program = nvrtc::result::create_program(&text, None).map_err(|e| failed(e.to_string()))?;
    // SAFETY: the program was just made, and is destroyed once, below.
    let code = unsafe {
        nvrtc::result::compile_program(program, options)
            .map_err(|error| failed(log(program).unwrap_or_else(|| error.to_string())))
            .and_then(|()| machine_code(program).map_err(|e| failed(e.to_string())))
    };
    // SAFETY: as above.
    let _ = unsafe { nvrtc::result::destroy_program(program) };
    code
}

fn log(program: nvrtc::sys::nvrtcProgram) -> Option<String> {
    // SAFETY: called between creation and destruction of the program.
    let log = unsafe { nvrtc::result::get_program_log(program) }.ok()?;
    let bytes: Vec<u8> = log.iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn machine_code(program: nvrtc::sys::nvrtcProgram) -> Result<Vec<u8>, nvrtc::result::NvrtcError> {
    let mut size = 0;
    // SAFETY: the program has been compiled, and the buffer has the size that NVRTC names.
    unsafe {
        nvrtc::sys::nvrtcGetCUBINSize(program, &mut size).result()?;
        let mut code = vec![0u8; size];
        nvrtc::sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()?;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(family: Family, function: &'static str, macros: &[(&'static str, u32)]) -> Source {
        Source { family, function, macros: macros.to_vec() }
    }

    /// Sources of every family, at the ends of the ranges of their macros.
    fn sources() -> Vec<Source> {
        let mut all = Vec::new();
        for (axis, explicit, k, l) in [(0, 0, 3, 16), (1, 0, 4, 12), (0, 1, 1, 4), (1, 1, 8, 16)] {
            let layout = [("K", k), ("L", l), ("AXIS", axis), ("EXPLICIT", explicit)];
            let with = |more: &[(&'static str, u32)]| [&layout[..], more].concat();
            all.push(source(Family::Repack, "repack", &with(&[("RUNS", 3)])));
            for units in [0, 1] {
                let decode = with(&[("CODE", 0), ("EXACT", 1), ("X", 2 * units), ("UNITS", units)]);
                let expand = [&decode[..], &[("RUNS", 1), ("ROWS", 1 + units)]].concat();
                all.push(source(Family::Expand, "expand", &expand));
                all.push(source(Family::Generic, "fold", &decode));
            }
            let (family, function) =
                if axis == 0 { (Family::Scatter, "scatter") } else { (Family::Reduce, "reduce") };
            for (rows, terms, warps) in [(1, 2, 16), (4, 3, 12), (8, 2, 12)] {
                let macros = with(&[
                    ("FIXED_LAYOUT", 1),
                    ("RING", if explicit == 1 { 1 } else { 8 }),
                    ("X", axis),
                    ("MM", rows),
                    ("TERMS", terms),
                    ("WARPS", warps),
                    ("STAGES", 3),
                    ("BLOCKS", 1),
                    ("GIVEN", u32::from(rows > 1)),
                ]);
                all.push(source(family, function, &macros));
                if axis == 0 && rows == 1 {
                    let joined = [&macros[..], &[("JOINED", 1)]].concat();
                    all.push(source(family, function, &joined));
                }
                all.push(source(Family::Quantize, "quantize", &macros));
            }
        }
        for code in [1, 2] {
            let macros = [("K", 2), ("L", 9), ("AXIS", 1), ("EXPLICIT", 0), ("CODE", code)];
            let macros = [&macros[..], &[("EXACT", 0), ("X", 1), ("UNITS", 0)]].concat();
            all.push(source(Family::Generic, "generic_reduce", &macros));
            let macros = [&macros[..], &[("RUNS", 0), ("ROWS", 1)]].concat();
            all.push(source(Family::Expand, "expand", &macros));
        }
        for (k, l) in [(1, 11), (3, 12), (6, 15), (1, 16), (4, 16)] {
            let (packed, double) = (u32::from(l == 16), u32::from(k > 1));
            let macros = [("K", k), ("L", l), ("PACKED", packed), ("DOUBLE", double)];
            all.push(source(Family::Viterbi, "viterbi", &macros));
        }
        for (dim, group) in [(16, 2), (64, 7), (128, 4), (256, 8)] {
            let macros = [("ATTENTION", 1), ("DIM", dim), ("GROUP", group)];
            all.push(source(Family::Decoder, "attention", &macros));
        }
        for (weight, rows, vector) in [(0, 1, 1), (1, 8, 8), (2, 3, 8)] {
            let macros = [("DENSE", 1), ("W", weight), ("MM", rows), ("VECTOR", vector)];
            all.push(source(Family::Decoder, "dense", &macros));
        }
        all.push(source(Family::Decoder, "rms_norm", &[("NORM", 1)]));
        all.push(source(Family::Decoder, "heads", &[("HEADS", 1)]));
        all.push(source(Family::Decoder, "gated", &[("GATED", 2)]));
        for held in [4, 8] {
            let macros = [("RESIDUAL", 1), ("HELD", held)];
            all.push(source(Family::Decoder, "residual", &macros));
        }
        all.push(source(Family::Decoder, "rotated_heads", &[("ROTATED_HEADS", 1)]));
        all.push(source(Family::Decoder, "rotated_gate", &[("ROTATED_GATE", 1)]));
        for function in ["rotate", "rotate_pieces"] {
            all.push(source(Family::Rotate, function, &[("IN", 0), ("OUT", 2), ("OUTPUT", 1)]));
        }
        all
    }

    #[test]
    fn kernels_compile_and_are_kept() {
        // SAFETY: loads NVRTC's library, whose initialization has no preconditions.
        if !unsafe { nvrtc::sys::is_culib_present() } {
            println!("skipped: NVRTC was not found");
            return;
        }
        let cache = tempfile::tempdir().unwrap();
        for architecture in [(8, 0), (9, 0)] {
            for source in sources() {
                let code = cubin(&source, architecture, Some(cache.path()))
                    .unwrap_or_else(|error| panic!("{source:?}: {error}"));
                assert_eq!(&code[..4], b"\x7fELF");
            }
        }
        let kept = std::fs::read_dir(cache.path()).unwrap().count();
        assert_eq!(kept, 2 * sources().len());
    }

    #[test]
    fn a_broken_kernel_names_itself() {
        // SAFETY: as above.
        if !unsafe { nvrtc::sys::is_culib_present() } {
            println!("skipped: NVRTC was not found");
            return;
        }
        let bad = source(Family::Rotate, "rotate", &[("IN", 7)]);
        let error = cubin(&bad, (9, 0), None).unwrap_err();
        assert!(matches!(error, CudaError::Compile { kernel, .. } if kernel == "rotate"));
    }

    #[test]
    fn one_mad_values_round_like_the_division() {
        // The formula of common.cuh, for every sum that a hash can have.
        let divisor = trelliq_codec::ONE_MAD_DIVISOR;
        let reciprocal = 1.0 / divisor;
        for y in -510..=510 {
            let y = y as f32;
            let q = y * reciprocal;
            let corrected = (-q).mul_add(divisor, y).mul_add(reciprocal, q);
            assert_eq!(corrected, y / divisor);
        }
    }
}
