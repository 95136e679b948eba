//! Which parts of a text are scored.

use super::EvalError;

/// How windows are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// `count` windows spread over the text, fewer where it is shorter: with n of them, window w
    /// starts at token `w * floor(floor(tokens / window) / n) * window`. Every token but the first
    /// of a window is scored.
    Spread { count: usize },
    /// Windows that start every `stride` tokens as long as they are full. The first scores all of
    /// its tokens but the first, each later one the tokens that those before it did not reach:
    /// each has at least `window - stride` tokens of context.
    Strided { stride: usize },
}

/// One window of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its first token.
    pub start: usize,
    /// The first token in it that is scored, at least 1.
    pub first_scored: usize,
}

impl Windows {
    /// The windows of a text of `tokens` tokens.
    ///
    /// Errors when the text is shorter than a window, or nothing would be scored.
    pub fn plan(self, tokens: usize, window: usize) -> Result<Vec<Window>, EvalError> {
        let stride = match self {
            Windows::Spread { count: 0 } => return Err(EvalError::NoWindows),
            Windows::Spread { .. } => window,
            Windows::Strided { stride } => stride,
        };
        if window < 2 || stride == 0 {
            return Err(EvalError::Windows { window, stride });
        }
        if tokens < window {
            return Err(EvalError::TooShort { tokens, window });
        }
        Ok(match self {
            Windows::Spread { count } => spread(tokens / window, window, count),
            Windows::Strided { stride } => strided(tokens, window, stride),
        })
    }
}

fn spread(available: usize, window: usize, count: usize) -> Vec<Window> {
    let count = count.min(available);
    let step = available / count * window;
    (0..count).map(|w| Window { start: w * step, first_scored: 1 }).collect()
}

fn strided(tokens: usize, window: usize, stride: usize) -> Vec<Window> {
    let starts = (0..=tokens - window).step_by(stride);
    let scored = |start| if start == 0 { 1 } else { window.saturating_sub(stride).max(1) };
    starts.map(|start| Window { start, first_scored: scored(start) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(windows: &[Window]) -> Vec<usize> {
        windows.iter().map(|window| window.start).collect()
    }

    #[test]
    fn spread_windows_start_by_the_stated_rule() {
        // floor(5500 / 512) = 10, floor(10 / 3) = 3.
        let plan = Windows::Spread { count: 3 }.plan(5500, 512).unwrap();
        assert_eq!(starts(&plan), [0, 3 * 512, 6 * 512]);
        let all = Windows::Spread { count: 99 }.plan(5500, 512).unwrap();
        assert_eq!(starts(&all), (0..10).map(|w| w * 512).collect::<Vec<_>>());
    }

    #[test]
    fn strided_windows_score_each_token_once() {
        let (tokens, window, stride) = (103, 20, 7);
        let plan = Windows::Strided { stride }.plan(tokens, window).unwrap();
        let scored: Vec<usize> =
            plan.iter().flat_map(|w| w.start + w.first_scored..w.start + window).collect();
        assert_eq!(scored, (1..1 + scored.len()).collect::<Vec<_>>());
        assert!(tokens - scored.len() - 1 < stride);
        assert!(plan.iter().skip(1).all(|w| w.first_scored == window - stride));
    }

    #[test]
    fn windows_that_score_nothing_are_errors() {
        assert!(matches!(
            Windows::Spread { count: 1 }.plan(511, 512),
            Err(EvalError::TooShort { tokens: 511, window: 512 })
        ));
        assert!(matches!(Windows::Spread { count: 0 }.plan(9, 3), Err(EvalError::NoWindows)));
        for (window, stride) in [(1, 1), (0, 1), (5, 0)] {
            assert!(Windows::Strided { stride }.plan(9, window).is_err());
        }
    }
}
