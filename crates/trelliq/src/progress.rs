//! Progress bars on standard error; nothing at all where that is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use trelliq_quantize::Event;

const BAR: &str = "{prefix:>9} {bar:30} {percent:>3}% eta {eta:>3} {wide_msg}";
const TICK: Duration = Duration::from_millis(200);

/// A bar over `total` units that shows what is left of the time. indicatif draws nothing where
/// standard error is not a terminal.
pub fn bar(prefix: &'static str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(BAR).expect("a fixed template");
    let bar = ProgressBar::new(total).with_style(style).with_prefix(prefix);
    bar.enable_steady_tick(TICK);
    bar
}

/// For work whose length is not known.
pub fn spinner(message: String) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message);
    spinner.enable_steady_tick(TICK);
    spinner
}

/// A bar a stage for the pipelines of `trelliq_quantize`, and the time that each stage took.
#[derive(Default)]
pub struct Stages {
    current: Mutex<Option<(ProgressBar, &'static str, Instant)>>,
    times: Mutex<Vec<(&'static str, Duration)>>,
}

impl Stages {
    pub fn on(&self, event: Event) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Stage { name, total } => {
                let next = (bar(name, total), name, Instant::now());
                self.end(current.replace(next));
            }
            Event::Tensor(path) => {
                current.iter().for_each(|(bar, ..)| bar.set_message(path.to_owned()))
            }
            Event::Advance(units) => current.iter().for_each(|(bar, ..)| bar.inc(units)),
        }
    }

    /// Ends the last stage.
    pub fn finish(&self) {
        self.end(self.current.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// How long the stages of this name took, `None` where there was none.
    pub fn time(&self, stage: &str) -> Option<Duration> {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let found: Vec<_> = times.iter().filter(|(name, _)| *name == stage).collect();
        (!found.is_empty()).then(|| found.iter().map(|(_, time)| *time).sum())
    }

    fn end(&self, stage: Option<(ProgressBar, &'static str, Instant)>) {
        if let Some((bar, name, started)) = stage {
            bar.finish_and_clear();
            let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
            times.push((name, started.elapsed()));
        }
    }
}
