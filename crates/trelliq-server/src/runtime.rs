//! The settings that a request reads beside those of the kernels.

use trelliq_config::{Config, ConfigBuilder, Key};
use trelliq_model::runtime;

const LOG_PROMPTS: &str = "log.prompts";

const KEYS: &[Key] =
    &[Key { name: LOG_PROMPTS, help: "1 writes prompts to the log, at level info (-v)" }];

/// Starts a snapshot in which every key that a request reads is known.
pub fn config_builder() -> ConfigBuilder {
    Config::builder(runtime::KEYS).keys(KEYS)
}

/// Whether prompts may be logged.
pub fn log_prompts(config: &Config) -> bool {
    config.flag(LOG_PROMPTS, false)
}
