//! The stores: order, caps and times against a plain model, and a kill during writes.

use proptest::prelude::*;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use trelliq_server::store::{
    DurableStore, Entry, ManualClock, MemoryStore, ResponseStore, StoreLimits, SystemClock,
};

fn entry(size: usize) -> Entry {
    Entry { input: vec![json!("x".repeat(size))], response: json!({ "output": [] }) }
}

fn bytes(id: &str, entry: &Entry) -> u64 {
    (id.len() + serde_json::to_vec(entry).unwrap().len()) as u64
}

#[derive(Debug, Clone)]
enum Action {
    Put(u8, usize),
    Get(u8),
    Remove(u8),
    Wait(u64),
    Reopen,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        5 => (0u8..6, 0usize..160).prop_map(|(id, size)| Action::Put(id, size)),
        4 => (0u8..6).prop_map(Action::Get),
        1 => (0u8..6).prop_map(Action::Remove),
        3 => (0u64..40).prop_map(Action::Wait),
        1 => Just(Action::Reopen),
    ]
}

/// What a store should be: a list, the least recently used first.
struct Model {
    limits: StoreLimits,
    now: Duration,
    /// id, entry, expiry, number of the put.
    entries: Vec<(String, Entry, Duration, u64)>,
    puts: u64,
}

impl Model {
    fn expire(&mut self) {
        let now = self.now;
        self.entries.retain(|(_, _, expiry, _)| *expiry > now);
    }

    fn total(&self) -> u64 {
        self.entries.iter().map(|(id, entry, ..)| bytes(id, entry)).sum()
    }

    fn put(&mut self, id: &str, entry: Entry) -> bool {
        self.expire();
        let size = bytes(id, &entry);
        if size > self.limits.cap {
            return false;
        }
        self.entries.retain(|(known, ..)| known != id);
        while self.total() + size > self.limits.cap {
            self.entries.remove(0);
        }
        self.puts += 1;
        self.entries.push((id.to_owned(), entry, self.now + self.limits.ttl, self.puts));
        true
    }

    fn get(&mut self, id: &str) -> Option<Entry> {
        self.expire();
        let at = self.entries.iter().position(|(known, ..)| known == id)?;
        let found = self.entries.remove(at);
        self.entries.push(found.clone());
        Some(found.1)
    }

    fn remove(&mut self, id: &str) -> bool {
        self.expire();
        let before = self.entries.len();
        self.entries.retain(|(known, ..)| known != id);
        self.entries.len() < before
    }
}

fn run(actions: &[Action], durable: bool) -> Result<(), TestCaseError> {
    let limits = StoreLimits { ttl: Duration::from_millis(100), cap: 500 };
    let clock = Arc::new(ManualClock::default());
    let folder = tempfile::tempdir().unwrap();
    let open = || -> Box<dyn ResponseStore> {
        if durable {
            let file = folder.path().join("responses.redb");
            Box::new(DurableStore::open(&file, limits, Arc::clone(&clock)).unwrap())
        } else {
            Box::new(MemoryStore::new(limits, Arc::clone(&clock)))
        }
    };
    let mut store = open();
    prop_assert_eq!((store.ttl(), store.cap()), (limits.ttl, limits.cap));
    let mut model = Model { limits, now: Duration::ZERO, entries: Vec::new(), puts: 0 };
    for action in actions {
        match action {
            Action::Put(id, size) => {
                let id = format!("resp_{id}");
                prop_assert_eq!(
                    store.put(&id, &entry(*size)).unwrap(),
                    model.put(&id, entry(*size))
                );
            }
            Action::Get(id) => {
                let id = format!("resp_{id}");
                prop_assert_eq!(store.get(&id).unwrap(), model.get(&id));
            }
            Action::Remove(id) => {
                let id = format!("resp_{id}");
                prop_assert_eq!(store.remove(&id).unwrap(), model.remove(&id));
            }
            Action::Wait(milliseconds) => {
                clock.advance(Duration::from_millis(*milliseconds));
                model.now += Duration::from_millis(*milliseconds);
            }
            Action::Reopen if durable => {
                drop(store);
                store = open();
                // The order of use is forgotten, that of the puts is not.
                model.entries.sort_by_key(|(_, _, _, put)| *put);
            }
            Action::Reopen => {}
        }
        model.expire();
        prop_assert_eq!(store.len(), model.entries.len());
        prop_assert_eq!(store.total_bytes(), model.total());
        prop_assert!(store.total_bytes() <= limits.cap);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_store_in_memory_is_what_it_should_be(actions in prop::collection::vec(action(), 0..60)) {
        run(&actions, false)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn so_is_the_durable_one(actions in prop::collection::vec(action(), 0..25)) {
        run(&actions, true)?;
    }
}

#[test]
fn a_smaller_cap_drops_the_oldest_when_a_file_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("responses.redb");
    let limits = StoreLimits::default();
    let store = DurableStore::open(&file, limits, SystemClock).unwrap();
    for id in ["a", "b", "c"] {
        store.put(id, &entry(100)).unwrap();
    }
    let two = store.total_bytes() * 2 / 3;
    drop(store);
    let store = DurableStore::open(&file, StoreLimits { cap: two, ..limits }, SystemClock).unwrap();
    let there = ["a", "b", "c"].map(|id| store.get(id).unwrap().is_some());
    assert_eq!(there, [false, true, true]);
}

#[test]
fn a_file_that_is_no_store_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "my notes").unwrap();
    assert!(DurableStore::open(&file, StoreLimits::default(), SystemClock).is_err());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "my notes");
}

/// Set in the child process of the next test: the file that it writes to.
const CHILD: &str = "STORE_TEST_FILE";

/// Writes until it is killed.
fn write_for_ever(file: &std::path::Path) {
    let store = DurableStore::open(file, StoreLimits::default(), SystemClock).unwrap();
    for i in store.len().. {
        store.put(&format!("resp_{i}"), &entry(i % 3000)).unwrap();
        println!("acknowledged {i}");
    }
}

#[test]
fn a_kill_during_writes_loses_nothing_acknowledged() {
    if let Some(file) = std::env::var_os(CHILD) {
        return write_for_ever(file.as_ref());
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("responses.redb");
    let mut acknowledged = 0;
    for round in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_kill_during_writes_loses_nothing_acknowledged", "--nocapture"])
            .env(CHILD, &file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let numbers = lines
            .map_while(Result::ok)
            .filter_map(|line| line.rsplit_once("acknowledged ")?.1.trim().parse::<usize>().ok());
        let mut last = None;
        let mut killed = false;
        for number in numbers {
            last = Some(number);
            if !killed && number >= acknowledged + 20 + 7 * round {
                child.kill().unwrap();
                killed = true;
            }
        }
        child.wait().unwrap();
        acknowledged = last.expect("the child wrote") + 1;
        let store = DurableStore::open(&file, StoreLimits::default(), SystemClock).unwrap();
        for i in 0..acknowledged {
            let found = store.get(&format!("resp_{i}")).unwrap();
            assert_eq!(found, Some(entry(i % 3000)), "round {round}, entry {i} of {acknowledged}");
        }
        assert!(store.len() <= acknowledged + 1, "at most one was not acknowledged in time");
        acknowledged = store.len();
    }
}
