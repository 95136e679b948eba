//! Which entries there are, how large they are, when they expire and in which order they leave.

use super::StoreLimits;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

#[derive(Debug)]
struct Place {
    bytes: u64,
    expires: Duration,
    used: u64,
}

/// The bookkeeping of a store, without its entries.
#[derive(Debug)]
pub(super) struct Index {
    limits: StoreLimits,
    places: HashMap<String, Place>,
    by_use: BTreeMap<u64, String>,
    /// (expiry, use number at the time of putting, which makes it unique).
    by_expiry: BTreeMap<(Duration, u64), String>,
    /// The part of the key in `by_expiry` that is not the expiry.
    put_numbers: HashMap<String, u64>,
    bytes: u64,
    next: u64,
}

impl Index {
    pub fn new(limits: StoreLimits) -> Self {
        Self {
            limits,
            places: HashMap::new(),
            by_use: BTreeMap::new(),
            by_expiry: BTreeMap::new(),
            put_numbers: HashMap::new(),
            bytes: 0,
            next: 0,
        }
    }

    pub fn limits(&self) -> StoreLimits {
        self.limits
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes the ids that have expired by `now` out and returns them.
    pub fn expire(&mut self, now: Duration) -> Vec<String> {
        let mut gone = Vec::new();
        while let Some((&(expires, _), id)) = self.by_expiry.first_key_value() {
            if expires > now {
                break;
            }
            gone.push(id.clone());
            let id = id.clone();
            self.remove(&id);
        }
        gone
    }

    /// Whether an entry of this size can be stored at all.
    pub fn admits(&self, bytes: u64) -> bool {
        bytes <= self.limits.cap
    }

    /// Adds an entry in place of one with the same id, and returns the ids that leave for it, the
    /// least recently used first. The entry must be [admitted](Self::admits).
    pub fn insert(&mut self, id: &str, bytes: u64, expires: Duration) -> Vec<String> {
        self.remove(id);
        let mut gone = Vec::new();
        while self.bytes + bytes > self.limits.cap {
            let Some((_, oldest)) = self.by_use.first_key_value() else { break };
            let oldest = oldest.clone();
            self.remove(&oldest);
            gone.push(oldest);
        }
        let used = self.number();
        self.bytes += bytes;
        self.by_use.insert(used, id.to_owned());
        self.by_expiry.insert((expires, used), id.to_owned());
        self.put_numbers.insert(id.to_owned(), used);
        self.places.insert(id.to_owned(), Place { bytes, expires, used });
        gone
    }

    /// Marks an entry as used; false when there is none.
    pub fn touch(&mut self, id: &str) -> bool {
        let used = self.number();
        let Some(place) = self.places.get_mut(id) else { return false };
        self.by_use.remove(&std::mem::replace(&mut place.used, used));
        self.by_use.insert(used, id.to_owned());
        true
    }

    pub fn remove(&mut self, id: &str) -> bool {
        let Some(place) = self.places.remove(id) else { return false };
        self.by_use.remove(&place.used);
        if let Some(put) = self.put_numbers.remove(id) {
            self.by_expiry.remove(&(place.expires, put));
        }
        self.bytes -= place.bytes;
        true
    }

    /// Entries and their bytes that have not expired by `now`.
    pub fn size(&self, now: Duration) -> (usize, u64) {
        let expired =
            self.by_expiry.range(..=(now, u64::MAX)).map(|(_, id)| &self.places[id].bytes);
        let (count, bytes) = expired.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        (self.places.len() - count, self.bytes - bytes)
    }
}
