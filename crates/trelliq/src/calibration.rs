//! Calibration text for Hessians: the bundled one, a text file, or the texts of a JSONL file.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use trelliq_model::Tokenizer;

/// The name that stands for the bundled text.
pub const BUNDLED: &str = "default";
const BUNDLED_TEXT: &str = include_str!("../assets/calibration.txt");

/// How a calibration text is cut.
#[derive(Debug, clap::Args)]
pub struct WindowArgs {
    /// Tokens of a calibration window
    #[arg(long, value_name = "N", default_value = "512")]
    window: NonZeroUsize,

    /// Calibration windows, spread over the text
    #[arg(long, value_name = "W", default_value = "40")]
    windows: NonZeroUsize,
}

impl WindowArgs {
    /// The windows of a text, by the rule of `trelliq eval`, so that a text is sampled alike by both.
    ///
    /// `text` is [`BUNDLED`], or a file; of a `.jsonl` file the `text` of every line is taken.
    pub fn read(&self, text: &str, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>> {
        let text = if text == BUNDLED { BUNDLED_TEXT.to_owned() } else { read(Path::new(text))? };
        let tokens = tokenizer.encode(&text, false)?;
        let (window, count) = (self.window.get(), self.windows.get());
        let full = tokens.len() / window;
        if full < count {
            bail!("the text has {full} windows of {window} tokens, {count} are wanted");
        }
        let at = |w: usize| tokens[w * (full / count) * window..][..window].to_vec();
        Ok((0..count).map(at).collect())
    }
}

fn read(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    if path.extension().is_none_or(|e| e != "jsonl") {
        return Ok(text);
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let texts = lines.map(|(index, line)| {
        let value: Value = serde_json::from_str(line)
            .with_context(|| format!("{}, line {}", path.display(), index + 1))?;
        match value.get("text").and_then(Value::as_str) {
            Some(text) => Ok(text.to_owned()),
            None => bail!("{}, line {}: no string `text`", path.display(), index + 1),
        }
    });
    Ok(texts.collect::<Result<Vec<_>>>()?.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::read;
    use std::fs;

    #[test]
    fn jsonl_gives_the_texts_of_its_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.jsonl");
        fs::write(&path, "{\"text\": \"one\\ntwo\"}\n\n{\"id\": 1, \"text\": \"three\"}\n")
            .unwrap();
        assert_eq!(read(&path).unwrap(), "one\ntwo\n\nthree");
        fs::write(&path, "{\"text\": \"one\"}\n{\"text\": 2}\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        fs::write(&path, "{").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("line 1"));
    }
}
