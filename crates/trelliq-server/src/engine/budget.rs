//! How much memory keys and values may take, and what fits into it.

use trelliq_model::ModelConfig;

/// What is asked of the memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvBudget {
    /// Tokens of a sequence; `None` for what fits, at most [`DEFAULT_CONTEXT`].
    pub context: Option<usize>,
    /// Sequences together; `None` for what fits, at most [`DEFAULT_BATCH`].
    pub max_batch: Option<usize>,
    /// Bytes for keys and values; `None` where nothing is known about the machine.
    pub memory: Option<u64>,
    /// Bytes of them that the prefix cache takes.
    pub prefix_cache: u64,
}

pub const DEFAULT_CONTEXT: usize = 4096;
pub const DEFAULT_BATCH: usize = 8;

/// What fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvPlan {
    pub context: usize,
    pub max_batch: usize,
    pub bytes_per_token: u64,
    /// Keys and values of `max_batch` full sequences.
    pub sequence_bytes: u64,
    pub prefix_bytes: u64,
}

/// A wish that cannot be met.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    #[error("a context of {context} was asked for, the model was trained for {trained}")]
    Trained { context: usize, trained: usize },
    #[error("context and batch are at least 1")]
    Zero,
    #[error(
        "{max_batch} sequences of {context} tokens need {} of keys and values and the prefix cache {}, \
         but there are {}: that holds {max_batch} of {fitting_context} tokens, or {fitting_batch} of {context}",
        mebibytes(*.needed), mebibytes(*.prefix_cache), mebibytes(*.memory)
    )]
    Memory {
        context: usize,
        max_batch: usize,
        needed: u64,
        prefix_cache: u64,
        memory: u64,
        fitting_context: usize,
        fitting_batch: usize,
    },
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

impl KvBudget {
    /// Keys and values of every layer, in f32.
    pub fn bytes_per_token(config: &ModelConfig) -> u64 {
        2 * 4 * config.layers.len() as u64 * config.kv_width() as u64
    }

    /// What was asked for if it fits, and as much as fits of what was not.
    ///
    /// Errors say what would fit.
    pub fn plan(&self, config: &ModelConfig) -> Result<KvPlan, BudgetError> {
        let trained = config.max_positions.unwrap_or(usize::MAX);
        let bytes_per_token = Self::bytes_per_token(config).max(1);
        if self.context == Some(0) || self.max_batch == Some(0) {
            return Err(BudgetError::Zero);
        }
        if let Some(context) = self.context.filter(|context| *context > trained) {
            return Err(BudgetError::Trained { context, trained });
        }
        let left = self.memory.map_or(u64::MAX, |bytes| bytes.saturating_sub(self.prefix_cache));
        let tokens = usize::try_from(left / bytes_per_token).unwrap_or(usize::MAX);
        let mut context = self.context.unwrap_or(DEFAULT_CONTEXT.min(trained));
        let max_batch = match self.max_batch {
            Some(max_batch) => max_batch,
            None => (tokens / context).clamp(1, DEFAULT_BATCH),
        };
        if self.context.is_none() {
            context = context.min((tokens / max_batch).max(1));
        }
        let needed = (context as u64).saturating_mul(max_batch as u64);
        let needed = needed.saturating_mul(bytes_per_token);
        if needed > left {
            return Err(BudgetError::Memory {
                context,
                max_batch,
                needed,
                prefix_cache: self.prefix_cache,
                memory: self.memory.unwrap_or(u64::MAX),
                fitting_context: tokens / max_batch,
                fitting_batch: tokens / context,
            });
        }
        Ok(KvPlan {
            context,
            max_batch,
            bytes_per_token,
            sequence_bytes: needed,
            prefix_bytes: self.prefix_cache,
        })
    }
}

/// Bytes that programs may still take here: what Linux calls available, or what is left of a
/// control group's limit where that is less. `None` elsewhere.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available = line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10;
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok()
    };
    let group = number("memory.max").zip(number("memory.current"));
    Some(group.map_or(available, |(most, now)| available.min(most.saturating_sub(now))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// 2 layers of 3 heads of 4 values: 2 * 4 * 2 * 12 = 192 bytes a token.
    fn config() -> ModelConfig {
        let json = json!({
            "model_type": "llama", "vocab_size": 8, "hidden_size": 12, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 8,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 1000,
        });
        ModelConfig::from_json(&json).unwrap()
    }

    fn plan(
        context: Option<usize>,
        max_batch: Option<usize>,
        tokens: u64,
    ) -> Result<KvPlan, BudgetError> {
        let memory = Some(192 * tokens + 50);
        KvBudget { context, max_batch, memory, prefix_cache: 50 }.plan(&config())
    }

    #[test]
    fn what_is_not_asked_for_is_made_to_fit() {
        let found = plan(None, None, 1 << 40).unwrap();
        assert_eq!((found.context, found.max_batch), (1000, DEFAULT_BATCH));
        assert_eq!(found.sequence_bytes, 8 * 1000 * 192);
        let found = plan(None, None, 2500).unwrap();
        assert_eq!((found.context, found.max_batch), (1000, 2));
        let found = plan(None, Some(10), 2500).unwrap();
        assert_eq!((found.context, found.max_batch), (250, 10));
        let found = plan(None, None, 300).unwrap();
        assert_eq!((found.context, found.max_batch), (300, 1));
    }

    #[test]
    fn what_is_asked_for_and_does_not_fit_is_refused_with_what_would() {
        let error = plan(Some(500), Some(8), 2500).unwrap_err();
        let BudgetError::Memory { needed, fitting_context, fitting_batch, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((needed, fitting_context, fitting_batch), (8 * 500 * 192, 312, 5));
        assert!(plan(Some(312), Some(8), 2500).is_ok() && plan(Some(500), Some(5), 2500).is_ok());
        assert!(plan(Some(313), Some(8), 2500).is_err() && plan(Some(500), Some(6), 2500).is_err());
        let beyond = plan(Some(1001), None, 1 << 40);
        assert_eq!(beyond, Err(BudgetError::Trained { context: 1001, trained: 1000 }));
        assert_eq!(plan(Some(0), None, 9), Err(BudgetError::Zero));
    }
}
