//! Keys and values of prompts that were run, for prompts that begin alike.
//!
//! Prompts are run in chunks of one size from their beginning, and whole chunks are kept, so that
//! what is reused is to the last bit what would be computed again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use trelliq_model::{KvCache, RuntimeOptions};

/// A chain of chunks: where a prompt has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChunkId(u64);

#[derive(Debug)]
struct Chunk {
    key: (ChunkId, Box<[u32]>),
    kv: Arc<KvCache>,
    bytes: usize,
    last_used: u64,
    /// Chunks that continue this one; they would be lost with it.
    children: usize,
}

/// Least recently used chunks leave first once the cap is passed.
#[derive(Debug)]
pub(super) struct PrefixCache {
    cap: usize,
    bytes: usize,
    /// Ids of roots and chunks, and times of use, all from one counter.
    clock: u64,
    roots: Vec<(RuntimeOptions, ChunkId)>,
    chunks: HashMap<ChunkId, Chunk>,
    by_content: HashMap<(ChunkId, Box<[u32]>), ChunkId>,
    by_use: BTreeMap<u64, ChunkId>,
}

/// What a chunk takes besides keys and values, roughly.
const OVERHEAD: usize = 256;

impl PrefixCache {
    /// `cap`: bytes at most; 0 keeps nothing.
    pub fn new(cap: usize) -> Self {
        Self {
            cap,
            bytes: 0,
            clock: 0,
            roots: Vec::new(),
            chunks: HashMap::new(),
            by_content: HashMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Where prompts start; other kernels give other bits, and have their own.
    pub fn root(&mut self, runtime: &RuntimeOptions) -> ChunkId {
        if let Some((_, root)) = self.roots.iter().find(|(options, _)| options == runtime) {
            return *root;
        }
        let root = ChunkId(self.tick());
        self.roots.push((runtime.clone(), root));
        root
    }

    /// The chunk of these tokens after `before`.
    pub fn get(&mut self, before: ChunkId, tokens: &[u32]) -> Option<(ChunkId, Arc<KvCache>)> {
        let id = *self.by_content.get(&(before, tokens.into()))?;
        let now = self.tick();
        let chunk = self.chunks.get_mut(&id)?;
        self.by_use.remove(&std::mem::replace(&mut chunk.last_used, now));
        self.by_use.insert(now, id);
        Some((id, Arc::clone(&chunk.kv)))
    }

    /// Keeps a chunk; `None` when it cannot be kept, or when what it continues has left.
    pub fn insert(&mut self, before: ChunkId, tokens: &[u32], kv: KvCache) -> Option<ChunkId> {
        let key = (before, Box::from(tokens));
        if let Some(id) = self.by_content.get(&key) {
            return Some(*id);
        }
        let bytes = kv.bytes() + 2 * size_of_val(tokens) + OVERHEAD;
        let is_root = self.roots.iter().any(|(_, root)| *root == before);
        if bytes > self.cap || !(is_root || self.chunks.contains_key(&before)) {
            return None;
        }
        while self.bytes + bytes > self.cap {
            self.evict(before)?;
        }
        let now = self.tick();
        let id = ChunkId(now);
        if let Some(parent) = self.chunks.get_mut(&before) {
            parent.children += 1;
        }
        self.bytes += bytes;
        self.by_content.insert(key.clone(), id);
        self.by_use.insert(now, id);
        let chunk = Chunk { key, kv: Arc::new(kv), bytes, last_used: now, children: 0 };
        self.chunks.insert(id, chunk);
        Some(id)
    }

    /// Drops the least recently used chunk that nothing continues, `spared` excepted.
    fn evict(&mut self, spared: ChunkId) -> Option<()> {
        let is_leaf = |id: &ChunkId| self.chunks[id].children == 0 && *id != spared;
        let id = self.by_use.values().copied().find(is_leaf)?;
        let chunk = self.chunks.remove(&id)?;
        self.by_use.remove(&chunk.last_used);
        self.by_content.remove(&chunk.key);
        self.bytes -= chunk.bytes;
        if let Some(parent) = self.chunks.get_mut(&chunk.key.0) {
            parent.children -= 1;
        }
        Some(())
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use trelliq_model::ModelConfig;

    /// Keys and values of no tokens: only the bookkeeping is tested here.
    fn kv() -> KvCache {
        let config = serde_json::json!({
            "model_type": "llama", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 8,
            "rms_norm_eps": 1e-5,
        });
        KvCache::new(&ModelConfig::from_json(&config).unwrap())
    }

    /// Bytes of one chunk of two tokens that holds no values.
    const CHUNK: usize = 2 * 2 * 4 + OVERHEAD;

    #[test]
    fn chains_are_found_token_by_token() {
        let mut cache = PrefixCache::new(10 * CHUNK);
        let root = cache.root(&RuntimeOptions::default());
        let a = cache.insert(root, &[1, 2], kv()).unwrap();
        let b = cache.insert(a, &[3, 4], kv()).unwrap();
        assert_eq!(cache.get(root, &[1, 2]).unwrap().0, a);
        assert_eq!(cache.get(a, &[3, 4]).unwrap().0, b);
        assert!(cache.get(root, &[3, 4]).is_none(), "the same tokens at another place");
        assert_eq!(cache.insert(root, &[1, 2], kv()), Some(a), "kept once");
        assert_eq!(cache.bytes(), 2 * CHUNK);
    }

    #[test]
    fn other_kernels_have_their_own_chunks() {
        let mut cache = PrefixCache::new(10 * CHUNK);
        let mut other = RuntimeOptions::default();
        other.kernel.prefill_from = Some(7);
        let (a, b) = (cache.root(&RuntimeOptions::default()), cache.root(&other));
        assert_ne!(a, b);
        assert_eq!(cache.root(&other), b);
        cache.insert(a, &[1, 2], kv()).unwrap();
        assert!(cache.get(b, &[1, 2]).is_none());
    }

    #[test]
    fn the_least_recently_used_end_of_a_chain_leaves_first() {
        let mut cache = PrefixCache::new(3 * CHUNK);
        let root = cache.root(&RuntimeOptions::default());
        let a = cache.insert(root, &[1, 1], kv()).unwrap();
        let b = cache.insert(a, &[2, 2], kv()).unwrap();
        cache.insert(root, &[3, 3], kv()).unwrap();
        cache.get(a, &[2, 2]).unwrap();
        cache.insert(root, &[4, 4], kv()).unwrap();
        assert!(cache.get(root, &[3, 3]).is_none(), "older than the chain's end");
        assert!(cache.get(root, &[1, 1]).is_some() && cache.get(a, &[2, 2]).is_some());
        cache.get(root, &[4, 4]).unwrap();
        cache.get(root, &[1, 1]).unwrap();
        cache.insert(root, &[5, 5], kv()).unwrap();
        assert!(cache.get(a, &[2, 2]).is_none(), "the end leaves before what it continues");
        assert!(cache.get(root, &[1, 1]).is_some());
        assert_eq!(cache.insert(b, &[6, 6], kv()), None, "what it continues has left");
    }

    #[test]
    fn nothing_is_kept_without_a_cap() {
        let mut cache = PrefixCache::new(0);
        let root = cache.root(&RuntimeOptions::default());
        assert_eq!(cache.insert(root, &[1], kv()), None);
    }

    proptest! {
        #[test]
        fn bytes_stay_under_the_cap_and_add_up(
            cap in 0usize..6,
            inserts in prop::collection::vec((0usize..8, 0u32..3), 0..60),
        ) {
            let mut cache = PrefixCache::new(cap * CHUNK + 7);
            let mut known = vec![cache.root(&RuntimeOptions::default())];
            for (before, token) in inserts {
                let before = known[before % known.len()];
                known.extend(cache.insert(before, &[token, token], kv()));
                prop_assert!(cache.bytes() <= cap * CHUNK + 7);
                prop_assert_eq!(cache.bytes(), cache.chunks.len() * CHUNK);
                prop_assert_eq!(cache.by_use.len(), cache.chunks.len());
                prop_assert_eq!(cache.by_content.len(), cache.chunks.len());
                for chunk in cache.chunks.values() {
                    let parent = chunk.key.0;
                    prop_assert!(parent == known[0] || cache.chunks.contains_key(&parent));
                }
            }
        }
    }
}
