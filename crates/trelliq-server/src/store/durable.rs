//! A store on disk, by redb: an entry that was put is there after a restart, and after a kill.

use super::index::Index;
use super::{Clock, Entry, ResponseStore, StoreError, StoreLimits, decode, encode};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// id -> (number of the put, time it expires in milliseconds since the Unix epoch, JSON).
const ENTRIES: TableDefinition<&str, (u64, u64, &[u8])> = TableDefinition::new("responses.1");

/// A row of the table, as [`ENTRIES`] describes it.
type Row<'a> = (u64, u64, &'a [u8]);

#[derive(Debug)]
struct State {
    index: Index,
    /// Numbers of puts, to restore their order.
    next: u64,
}

/// Every put is one transaction that is on disk before it is acknowledged. The order of leaving is
/// kept in memory: after a restart it is that of the puts.
#[derive(Debug)]
pub struct DurableStore<C> {
    database: Database,
    state: Mutex<State>,
    clock: C,
}

impl<C: Clock> DurableStore<C> {
    /// Opens or creates the file. Entries that have expired, or that a smaller cap has no room for,
    /// leave.
    ///
    /// Errors when the file is in use, is not such a store or cannot be written.
    pub fn open(path: &Path, limits: StoreLimits, clock: C) -> Result<Self, StoreError> {
        let database = Database::create(path).map_err(database)?;
        let transaction = database.begin_write().map_err(self::database)?;
        transaction.open_table(ENTRIES).map_err(self::database)?;
        transaction.commit().map_err(self::database)?;
        let store = Self {
            database,
            state: Mutex::new(State { index: Index::new(limits), next: 0 }),
            clock,
        };
        store.restore()?;
        Ok(store)
    }

    /// Fills the index from the table.
    fn restore(&self) -> Result<(), StoreError> {
        let mut found = Vec::new();
        let transaction = self.database.begin_read().map_err(database)?;
        let table = transaction.open_table(ENTRIES).map_err(database)?;
        for row in table.iter().map_err(database)? {
            let (id, value) = row.map_err(database)?;
            let (number, expires, json) = value.value();
            let id = id.value().to_owned();
            found.push((
                number,
                Duration::from_millis(expires),
                (id.len() + json.len()) as u64,
                id,
            ));
        }
        found.sort_unstable_by_key(|(number, ..)| *number);
        let mut state = self.lock();
        let mut gone = Vec::new();
        for (number, expires, bytes, id) in found {
            state.next = number + 1;
            if state.index.admits(bytes) {
                gone.extend(state.index.insert(&id, bytes, expires));
            } else {
                gone.push(id);
            }
        }
        gone.extend(state.index.expire(self.clock.now()));
        self.write(None, &gone)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One transaction: adds an entry, removes others.
    fn write(&self, put: Option<(&str, Row)>, gone: &[String]) -> Result<(), StoreError> {
        if put.is_none() && gone.is_empty() {
            return Ok(());
        }
        let transaction = self.database.begin_write().map_err(database)?;
        {
            let mut table = transaction.open_table(ENTRIES).map_err(database)?;
            for id in gone {
                table.remove(id.as_str()).map_err(database)?;
            }
            if let Some((id, value)) = put {
                table.insert(id, value).map_err(database)?;
            }
        }
        // Durable by default: the commit returns when the file is synchronised.
        transaction.commit().map_err(database)
    }

    fn read(&self, id: &str) -> Result<Option<Entry>, StoreError> {
        let transaction = self.database.begin_read().map_err(database)?;
        let table = transaction.open_table(ENTRIES).map_err(database)?;
        let row = table.get(id).map_err(database)?;
        row.map(|row| decode(id, row.value().2)).transpose()
    }
}

impl<C: Clock> ResponseStore for DurableStore<C> {
    fn put(&self, id: &str, entry: &Entry) -> Result<bool, StoreError> {
        let json = encode(id, entry)?;
        let bytes = (id.len() + json.len()) as u64;
        let mut state = self.lock();
        let now = self.clock.now();
        let mut gone = state.index.expire(now);
        let admitted = state.index.admits(bytes);
        if !admitted {
            self.write(None, &gone)?;
            return Ok(false);
        }
        let expires = now + state.index.limits().ttl;
        gone.extend(state.index.insert(id, bytes, expires));
        let number = state.next;
        state.next += 1;
        self.write(Some((id, (number, expires.as_millis() as u64, &json))), &gone).inspect_err(
            |_| {
                state.index.remove(id);
            },
        )?;
        Ok(true)
    }

    fn get(&self, id: &str) -> Result<Option<Entry>, StoreError> {
        let mut state = self.lock();
        let gone = state.index.expire(self.clock.now());
        self.write(None, &gone)?;
        if !state.index.touch(id) {
            return Ok(None);
        }
        self.read(id)
    }

    fn remove(&self, id: &str) -> Result<bool, StoreError> {
        let mut state = self.lock();
        let mut gone = state.index.expire(self.clock.now());
        let found = state.index.remove(id);
        gone.push(id.to_owned());
        self.write(None, &gone)?;
        Ok(found)
    }

    fn limits(&self) -> StoreLimits {
        self.lock().index.limits()
    }

    fn len(&self) -> usize {
        let now = self.clock.now();
        self.lock().index.size(now).0
    }

    fn total_bytes(&self) -> u64 {
        let now = self.clock.now();
        self.lock().index.size(now).1
    }
}

fn database(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Database(Box::new(error.into()))
}
