//! Where a model runs.

use super::ModelError;
use std::str::FromStr;

/// Where a model is to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first NVIDIA GPU whose free memory holds the model, where its driver and libraries are
    /// installed; else the CPU.
    Auto,
    #[default]
    Cpu,
    /// An NVIDIA GPU by its number.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = ModelError;

    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    fn from_str(text: &str) -> Result<Self, ModelError> {
        let unknown = || ModelError::Device { found: text.to_owned() };
        Ok(match text {
            "auto" => Self::Auto,
            "cpu" => Self::Cpu,
            "cuda" => Self::Cuda(0),
            _ => {
                let number = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                Self::Cuda(number.parse().map_err(|_| unknown())?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        let parse = |text: &str| text.parse::<DeviceChoice>().ok();
        assert_eq!(parse("auto"), Some(DeviceChoice::Auto));
        assert_eq!(parse("cpu"), Some(DeviceChoice::Cpu));
        assert_eq!(parse("cuda"), Some(DeviceChoice::Cuda(0)));
        assert_eq!(parse("cuda:3"), Some(DeviceChoice::Cuda(3)));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
