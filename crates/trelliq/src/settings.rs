//! Settings that every command which runs a model takes: keys of the runtime configuration.

use anyhow::Result;
use std::path::PathBuf;
use trelliq_config::{Config, ConfigBuilder};

/// Variables of the environment that are not settings.
const OTHER_VARIABLES: &[&str] = &["TRELLIQ_API_KEY", "TRELLIQ_THREADS", "TRELLIQ_KERNEL_CACHE"];

/// What a configuration is read from.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Settings {
    /// A TOML file of settings (a server reads it again on SIGHUP)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// A setting, which wins over the file and TRELLIQ_* of the environment; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

impl Settings {
    /// Errors name the file or the key that is wrong; keys that `builder` does not know are warned of.
    pub fn read(&self, builder: ConfigBuilder) -> Result<Config> {
        let mut builder = builder.ignore(OTHER_VARIABLES).environment(std::env::vars());
        if let Some(file) = &self.config {
            builder = builder.file(file)?;
        }
        for setting in &self.settings {
            builder = builder.setting(setting)?;
        }
        let config = builder.build();
        for unknown in config.unknown() {
            eprintln!("warning: {unknown}");
        }
        Ok(config)
    }
}
