use super::*;
use crate::tokenizer::Tokenizer;
use std::collections::BTreeMap;

fn files(entries: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    entries.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
}

fn render(templates: &ChatTemplates, name: Option<&str>) -> Result<String, ChatError> {
    templates.get(name)?.render(&[Message::new("user", "x")], true)
}

#[test]
fn templates_by_name() {
    let config = r#"{"chat_template": [{"name": "default", "template": "d"},
        {"name": "tool_use", "template": "{{ messages[0].content }}"}]}"#;
    let templates =
        ChatTemplates::from_files(&files(&[("tokenizer_config.json", config)])).unwrap();
    assert_eq!(templates.names().collect::<Vec<_>>(), ["default", "tool_use"]);
    assert_eq!(render(&templates, None).unwrap(), "d");
    assert_eq!(render(&templates, Some("tool_use")).unwrap(), "x");
    let error = render(&templates, Some("rag")).unwrap_err().to_string();
    assert_eq!(error, "the model has no chat template named `rag`: it has default, tool_use");
}

#[test]
fn a_separate_file_wins_over_the_tokenizer_config() {
    let config = r#"{"chat_template": "old", "bos_token": {"content": "<s>", "lstrip": false}}"#;
    let all = files(&[
        ("tokenizer_config.json", config),
        ("chat_template.jinja", "{{ bos_token }}{{ messages[0]['role'] }}\n"),
        ("additional_chat_templates/rag.jinja", "rag {{ eos_token }}"),
    ]);
    let templates = ChatTemplates::from_files(&all).unwrap();
    assert_eq!(render(&templates, None).unwrap(), "<s>user");
    assert_eq!(render(&templates, Some("rag")).unwrap(), "rag ");
}

#[test]
fn a_model_without_a_template() {
    for all in [files(&[]), files(&[("tokenizer_config.json", r#"{"chat_template": null}"#)])] {
        let templates = ChatTemplates::from_files(&all).unwrap();
        assert!(matches!(render(&templates, None), Err(ChatError::NoTemplate)));
    }
}

#[test]
fn malformed_files() {
    let from = |name, text| ChatTemplates::from_files(&files(&[(name, text)]));
    let config = "tokenizer_config.json";
    assert!(matches!(from(config, "{"), Err(ChatError::Json { .. })));
    for odd in [r#"{"chat_template": 3}"#, r#"{"chat_template": [{"name": "default"}]}"#] {
        assert!(matches!(from(config, odd), Err(ChatError::BadTemplate)));
    }
    let latin = [("chat_template.jinja".to_owned(), vec![0xe9])].into();
    assert!(matches!(ChatTemplates::from_files(&latin), Err(ChatError::NotUtf8 { .. })));
}

#[test]
fn tags_that_mark_the_assistants_tokens_print_nothing() {
    let text = "{% for m in messages %}{%- generation -%} {{ m.content }}{% endgeneration %}!{% endfor %} {{ 'generation' }}";
    let template = ChatTemplate::new(text, &Value::Null).unwrap();
    assert_eq!(template.render(&[Message::new("user", "hi")], false).unwrap(), "hi! generation");
}

const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [
    {"id": 2, "content": "<start_of_turn>", "special": true, "single_word": false,
     "lstrip": false, "rstrip": false, "normalized": false},
    {"id": 3, "content": "<end_of_turn>", "special": true, "single_word": false,
     "lstrip": false, "rstrip": false, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}"#;

#[test]
fn a_model_without_a_template_is_talked_to_in_plain_text() {
    let all = files(&[("tokenizer.json", TOKENIZER)]);
    let templates = ChatTemplates::from_files(&all).unwrap();
    let template = templates.or_plain().unwrap();
    let turns = [
        Message::new("user", " Hi? "),
        Message::new("assistant", "Ho."),
        Message::new("user", "x"),
    ];
    let talk = "\n\nUser: Hi?\n\nAssistant: Ho.\n\nUser: x";
    let prompt = template.render(&turns, true).unwrap();
    let preamble = "This is a conversation between a user and a helpful assistant.";
    assert_eq!(prompt, format!("{preamble}{talk}\n\nAssistant:"));
    let system = [&[Message::new("system", "A talk.")], &turns[..]].concat();
    assert_eq!(template.render(&system, false).unwrap(), format!("A talk.{talk}"));
    assert_eq!(template.stop(), Some("\n\nUser:"));
    let own = files(&[("chat_template.jinja", "own")]);
    let own = ChatTemplates::from_files(&own).unwrap().or_plain().unwrap();
    assert_eq!((own.render(&turns, true).unwrap(), own.stop()), ("own".to_owned(), None));
}

#[test]
fn the_turns_of_a_vocabulary_end_an_answer() {
    let tokenizer = |json: &str| {
        let all = files(&[("tokenizer.json", json)]);
        Tokenizer::from_files(&all, &serde_json::Value::Null).unwrap()
    };
    let gemma = tokenizer(TOKENIZER);
    assert_eq!(TurnFormat::of(&gemma).map(|format| format.name), Some("gemma"));
    assert_eq!(gemma.eos_tokens().collect::<Vec<_>>(), [3]);
    let plain = tokenizer(&TOKENIZER.replace("end_of_turn", "eot"));
    assert_eq!(TurnFormat::of(&plain), None);
    assert_eq!(plain.eos_tokens().count(), 0);
}
