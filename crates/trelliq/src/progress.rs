//! Progress bars on standard error; nothing at all where that is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

const TEMPLATE: &str = "{prefix:>10} {bar:30} {percent:>3}% {msg} eta {eta}";

/// A bar over `total` units that shows what is left of the time. indicatif draws nothing where
/// standard error is not a terminal.
pub fn bar(prefix: &'static str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(TEMPLATE).expect("a fixed template");
    let bar = ProgressBar::new(total).with_style(style).with_prefix(prefix);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
