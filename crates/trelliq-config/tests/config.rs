//! The contract of `docs/spec/serving.md`, part "Runtime configuration".

use proptest::prelude::*;
use std::time::Duration;
use trelliq_config::{Config, ConfigCell, ConfigError, Key, Origin};

const KEYS: &[Key] = &[
    Key { name: "kernel.variant", help: "" },
    Key { name: "kernel.prefill_from", help: "" },
    Key { name: "memory_ceiling", help: "" },
];

fn variables(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn with(value: &str) -> Config {
    Config::builder(KEYS).flag("kernel.variant", value).build()
}

fn variant() -> Option<String> {
    Config::current().value("kernel.variant").map(str::to_owned)
}

#[test]
fn flags_win_over_the_file_and_the_file_over_the_environment() {
    let environment = variables(&[
        ("TRELLIQ_KERNEL_VARIANT", "env"),
        ("TRELLIQ_KERNEL_PREFILL_FROM", "1"),
        ("TRELLIQ_MEMORY_CEILING", "10"),
        ("HOME", "/nowhere"),
    ]);
    let file = "memory_ceiling = 20\n[kernel]\nprefill_from = 2\n";
    // The order of the calls does not matter.
    let config = Config::builder(KEYS).flag("memory_ceiling", "30");
    let config = config.toml(file, "t.toml").unwrap().environment(environment).build();
    assert_eq!(config.value("kernel.variant"), Some("env"));
    assert_eq!(config.value("kernel.prefill_from"), Some("2"));
    assert_eq!(config.value("memory_ceiling"), Some("30"));
    assert_eq!(config.unknown(), []);
}

#[test]
fn an_explicit_one_or_zero_wins_over_the_default() {
    for default in [false, true] {
        assert!(with("1").flag("kernel.variant", default));
        assert!(!with("0").flag("kernel.variant", default));
        for other in ["", "yes", "2", "true"] {
            assert_eq!(with(other).flag("kernel.variant", default), default, "{other}");
        }
        assert_eq!(Config::default().flag("kernel.variant", default), default);
    }
    let file = Config::builder(KEYS).toml("kernel = {variant = true}", "f").unwrap().build();
    assert!(file.flag("kernel.variant", false));
}

#[test]
fn bad_numbers_are_errors_that_name_the_key() {
    assert_eq!(with(" 24 ").number("kernel.variant", 0usize).unwrap(), 24);
    assert_eq!(with("2.5").number("kernel.variant", 0f64).unwrap(), 2.5);
    assert_eq!(with("x").number("memory_ceiling", 7usize).unwrap(), 7);
    let variables = variables(&[("TRELLIQ_MEMORY_CEILING", "lots")]);
    let config = Config::builder(KEYS).environment(variables).build();
    let error = config.number("memory_ceiling", 0usize).unwrap_err();
    let ConfigError::Value { key, value, origin, .. } = &error else { panic!("{error}") };
    assert_eq!((key.as_str(), value.as_str()), ("memory_ceiling", "lots"));
    assert_eq!(*origin, Origin::Environment("TRELLIQ_MEMORY_CEILING".into()));
    assert!(error.to_string().contains("`memory_ceiling` is `lots`"), "{error}");
    assert!(with("-1").number("kernel.variant", 0usize).is_err());
}

#[test]
fn unknown_keys_are_reported_with_their_source() {
    let environment = variables(&[("TRELLIQ_KERNAL_ISA", "x"), ("TRELLIQ_API_KEY", "secret")]);
    let config = Config::builder(KEYS)
        .ignore(&["TRELLIQ_API_KEY"])
        .environment(environment)
        .toml("[kernel]\nvariants = 1\n", "t.toml")
        .unwrap()
        .setting("memory=3")
        .unwrap()
        .build();
    let found: Vec<_> = config.unknown().iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "unknown key `kernal_isa` from TRELLIQ_KERNAL_ISA in the environment",
            "unknown key `kernel.variants` from t.toml",
            "unknown key `memory` from a flag",
        ]
    );
    assert_eq!(config.value("memory"), None);
}

#[test]
fn sources_that_cannot_be_used() {
    let builder = || Config::builder(KEYS);
    assert!(matches!(builder().toml("= 3", "f"), Err(ConfigError::Toml { .. })));
    let list = builder().toml("memory_ceiling = [1]", "f").unwrap_err();
    assert_eq!(list.to_string(), "f: `memory_ceiling` is neither a string, a number nor a boolean");
    assert!(matches!(builder().setting("novalue"), Err(ConfigError::Setting { .. })));
    let missing = tempfile::tempdir().unwrap().path().join("none.toml");
    assert!(matches!(builder().file(&missing), Err(ConfigError::Read { .. })));
}

#[test]
fn nested_scopes_restore_the_outer_one() {
    assert_eq!(variant(), None);
    let outer = with("outer").enter();
    {
        let _inner = with("inner").enter();
        assert_eq!(variant().as_deref(), Some("inner"));
    }
    assert_eq!(variant().as_deref(), Some("outer"));
    let unwound = std::panic::catch_unwind(|| {
        let _inner = with("inner").enter();
        panic!("unwinds through the scope");
    });
    assert!(unwound.is_err());
    assert_eq!(variant().as_deref(), Some("outer"));
    drop(outer);
    assert_eq!(variant(), None);
}

#[test]
fn another_thread_has_its_own_scope_and_carried_work_brings_one() {
    let _scope = with("here").enter();
    let carried = Config::carry(variant);
    let (plain, carried) = std::thread::spawn(move || (variant(), carried())).join().unwrap();
    assert_eq!((plain, carried.as_deref()), (None, Some("here")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn work_in_flight_keeps_its_snapshot_across_awaits_and_threads() {
    let cell = std::sync::Arc::new(ConfigCell::new(with("0")));
    let mut tasks = Vec::new();
    for i in 0..64 {
        cell.set(with(&i.to_string()));
        let config = cell.get();
        tasks.push(tokio::spawn(config.scope(async move {
            let started = variant();
            for step in 0..20 {
                tokio::time::sleep(Duration::from_micros(50 * (step % 3))).await;
                assert_eq!(variant(), started);
                with("inner")
                    .scope(async {
                        tokio::task::yield_now().await;
                        assert_eq!(variant().as_deref(), Some("inner"));
                    })
                    .await;
                assert_eq!(variant(), started);
            }
            started
        })));
    }
    for (i, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), Some(i.to_string()));
    }
    assert_eq!(variant(), None);
}

proptest! {
    /// The highest source that has a key decides its value.
    #[test]
    fn precedence(environment: Option<u8>, file: Option<u8>, flag: Option<u8>) {
        let mut builder = Config::builder(KEYS);
        if let Some(n) = environment {
            builder = builder.environment([("TRELLIQ_MEMORY_CEILING".to_owned(), n.to_string())]);
        }
        if let Some(n) = flag {
            builder = builder.flag("memory_ceiling", n.to_string());
        }
        if let Some(n) = file {
            builder = builder.toml(&format!("memory_ceiling = {n}"), "f").unwrap();
        }
        let expected = flag.or(file).or(environment).map_or(999, u64::from);
        prop_assert_eq!(builder.build().number("memory_ceiling", 999u64).unwrap(), expected);
    }
}
