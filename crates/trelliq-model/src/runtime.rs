//! From a configuration snapshot (`docs/spec/serving.md`, second part) to what the kernels read.

use crate::RuntimeOptions;
use trelliq_config::{Config, ConfigError, Key};
use trelliq_kernels::{Activations, Isa, KernelOptions, Numerics};

const NUMERICS: &str = "kernel.numerics";
const ACTIVATIONS: &str = "kernel.activations";
const ISA: &str = "kernel.isa";
const PREFILL_FROM: &str = "kernel.prefill_from";
const EXPAND_FROM: &str = "kernel.expand_from";
const MEMORY_CEILING: &str = "kernel.memory_ceiling";

/// The keys that the kernels read, at every call.
pub const KEYS: &[Key] = &[
    Key { name: NUMERICS, help: "`fast`, or `exact` to round decoded weights to bf16" },
    Key { name: ACTIVATIONS, help: "what activations are multiplied in: `auto`, `int` or `f32`" },
    Key { name: ISA, help: "instruction set: scalar, baseline, avx2, avx512, avx512-vnni" },
    Key { name: PREFILL_FROM, help: "rows from which tiles are decoded for a matrix multiply" },
    Key { name: EXPAND_FROM, help: "rows from which a whole tensor is expanded first" },
    Key { name: MEMORY_CEILING, help: "bytes that an expanded tensor may take" },
];

/// The kernels' choices under a snapshot; what it does not say is as in `base`.
///
/// Errors name the key whose value cannot be used.
pub fn runtime_options(
    config: &Config,
    base: &RuntimeOptions,
) -> Result<RuntimeOptions, ConfigError> {
    let base = &base.kernel;
    let kernel = KernelOptions {
        numerics: match config.value(NUMERICS) {
            None => base.numerics,
            Some("fast") => Numerics::Fast,
            Some("exact") => Numerics::Exact,
            Some(_) => return Err(config.invalid(NUMERICS, "`fast` or `exact`")),
        },
        activations: match config.value(ACTIVATIONS) {
            None => base.activations,
            Some("auto") => Activations::Auto,
            Some("int") => Activations::Int,
            Some("f32") => Activations::F32,
            Some(_) => return Err(config.invalid(ACTIVATIONS, "`auto`, `int` or `f32`")),
        },
        isa: match config.value(ISA) {
            None => base.isa,
            Some(name) => Some(isa(name).ok_or_else(|| config.invalid(ISA, ISAS))?),
        },
        prefill_from: match config.value(PREFILL_FROM) {
            None => base.prefill_from,
            Some(_) => Some(config.number(PREFILL_FROM, 0)?),
        },
        expand_from: config.number(EXPAND_FROM, base.expand_from)?,
        memory_ceiling: config.number(MEMORY_CEILING, base.memory_ceiling)?,
    };
    Ok(RuntimeOptions { kernel })
}

const ISAS: &str =
    "`scalar`, `baseline`, `avx2`, `avx512` or `avx512-vnni`, one that this machine has";

fn isa(name: &str) -> Option<Isa> {
    Isa::ALL.into_iter().find(|isa| isa.name() == name && isa.available())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(settings: &[&str]) -> Result<RuntimeOptions, ConfigError> {
        let mut builder = Config::builder(KEYS);
        for setting in settings {
            builder = builder.setting(setting).unwrap();
        }
        let config = builder.build();
        assert_eq!(config.unknown(), []);
        runtime_options(&config, &RuntimeOptions::default())
    }

    #[test]
    fn a_snapshot_changes_what_it_names_and_nothing_else() {
        let default = KernelOptions::default();
        assert_eq!(options(&[]).unwrap().kernel, default);
        let found = options(&[
            "kernel.numerics=exact",
            "kernel.activations=f32",
            "kernel.isa=scalar",
            "kernel.prefill_from=7",
        ]);
        let expected = KernelOptions {
            numerics: Numerics::Exact,
            activations: Activations::F32,
            isa: Some(Isa::Scalar),
            prefill_from: Some(7),
            ..default
        };
        assert_eq!(found.unwrap().kernel, expected);
    }

    #[test]
    fn bad_values_name_their_key() {
        for setting in ["kernel.numerics=slow", "kernel.isa=z80", "kernel.memory_ceiling=big"] {
            let key = setting.split_once('=').unwrap().0;
            let error = options(&[setting]).unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`")), "{error}");
        }
    }
}
