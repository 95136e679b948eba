//! Merges of a SentencePiece BPE vocabulary, which a GGUF file holds as pieces and scores only.
//!
//! SentencePiece joins the two neighbours whose union has the best score; a BPE merge list says the
//! same when every way to make a piece of two pieces is a merge, ordered by the piece's score. Where
//! different pieces have equal scores SentencePiece takes the leftmost pair, which no list can say;
//! trained vocabularies have no such pieces. Here their order is that of transformers'
//! `generate_merges`.

use std::collections::{HashMap, HashSet};

/// A piece: its text and score, by its id.
pub(crate) type Piece<'a> = (&'a str, f32);

/// All merges, best first. `pieces[id]` is `None` for tokens that no text is made of.
pub(crate) fn merges<'a>(pieces: &[Option<Piece<'a>>]) -> Vec<(&'a str, &'a str)> {
    let known = |(id, piece): (usize, &Option<Piece<'a>>)| piece.map(|(text, _)| (text, id));
    let ids: HashMap<&str, usize> = pieces.iter().enumerate().filter_map(known).collect();
    // Looked at before a half is hashed: a hostile token of a million characters has as many halves.
    let lengths: HashSet<usize> = ids.keys().map(|text| text.len()).collect();
    let possible = |(l, r): &(&str, &str)| lengths.contains(&l.len()) && lengths.contains(&r.len());
    let mut found = Vec::new();
    for &(text, score) in pieces.iter().flatten() {
        let cuts = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let halves =
            cuts.filter(possible).filter_map(|(l, r)| Some(((*ids.get(l)?, *ids.get(r)?), (l, r))));
        let mut halves: Vec<_> = halves.collect();
        halves.sort_by_key(|&(ids, _)| ids);
        found.extend(halves.into_iter().map(|(_, (l, r))| (score, l, r)));
    }
    // Stable: equal merges stay in the order of their pieces. Lengths count characters.
    found.sort_by_cached_key(|&(score, l, r)| {
        (std::cmp::Reverse(Score(score)), usize::MAX - chars(l), usize::MAX - chars(r))
    });
    found.into_iter().map(|(_, l, r)| (l, r)).collect()
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

/// A score in its total order.
#[derive(PartialEq)]
struct Score(f32);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}
