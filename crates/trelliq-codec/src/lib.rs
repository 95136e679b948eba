//! Bitshift trellis codes for weights (QTIP, <https://arxiv.org/abs/2406.11235>).
//!
//! A block of `T` weights is coded as a walk through a trellis whose states are `L`-bit words:
//! `s[t] = ((s[t-1] << K) | b[t]) mod 2^L`, with `K` stored bits a weight. The walk is a ring, so
//! any weight decodes from one `L`-bit window of the packed bits and nothing else. The written
//! format is `docs/spec/codec.md`.
//!
//! ```
//! use trelliq_codec::{Code, RowCodec, ScaleRule, Trellis};
//!
//! let trellis = Trellis::new(Code::OneMad, 12, 3, 64)?;
//! let row: Vec<f32> = (0..128).map(|i| (i as f32 * 0.7).sin()).collect();
//! let encoded = RowCodec::new(trellis, ScaleRule::Tuned, 2)?.encode(&row, 128, &|_| {})?;
//! assert_eq!(encoded.words.len(), 128 * 3 / 32);
//! # Ok::<(), trelliq_codec::CodecError>(())
//! ```

mod code;
mod error;
mod gains;
mod interleave;
mod pack;
mod reference;
mod rows;
mod scale;
mod trellis;
mod viterbi;

pub use code::{Code, ONE_MAD_DIVISOR, code_rms, code_values, one_mad_integer};
pub use error::CodecError;
pub use interleave::{INTERLEAVED_WORDS, deinterleave, interleave};
pub use pack::{decode_block, pack_block, state_at, unpack_block};
pub use reference::encode_block_reference;
pub use rows::{EncodedRows, RowCodec, check_finite, decode_rows};
pub use scale::{ScaleRule, tuned_gain};
pub use trellis::{BITS, STATE_BITS, Trellis};
pub use viterbi::{BlockEncoder, MIN_PASSES};
