/// What a long operation tells its caller, from any thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A stage of `total` units begins (`check`: bytes; `code` and `decode`: weights; `write`: bytes).
    Stage { name: &'static str, total: u64 },
    /// Work on this tensor begins.
    Tensor(&'a str),
    /// So many more units of the stage are done.
    Advance(u64),
}

/// A receiver of [`Event`]s.
pub type Progress<'a> = &'a (dyn Fn(Event) + Sync);
