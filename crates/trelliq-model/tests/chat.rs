//! Chat templates against jinja2 as transformers sets it up (`templates/make_cases.py`).

use serde_json::{Value, json};
use trelliq_model::{ChatError, ChatTemplate, TurnFormat};

#[test]
fn prompts_are_those_of_jinja2() {
    let cases: Value = serde_json::from_str(include_str!("templates/cases.json")).unwrap();
    let mut refused = 0;
    for (index, case) in cases["cases"].as_array().unwrap().iter().enumerate() {
        let name = case["template"].as_str().unwrap();
        let text = cases["templates"][name].as_str().unwrap();
        let template = ChatTemplate::new(text, &cases["special"]).unwrap();
        match template.render_json(&case["messages"], &case["extra"]) {
            Ok(prompt) => assert_eq!(prompt, case["text"].as_str().unwrap(), "{index} {name}"),
            Err(ChatError::Refused(message)) => {
                refused += 1;
                assert_eq!(message, case["refused"].as_str().unwrap(), "{index} {name}");
            }
            Err(error) => panic!("{index} {name}: {error:?}"),
        }
    }
    assert_eq!(refused, 3);
}

#[test]
fn the_time_is_printed_by_the_given_format() {
    let template = ChatTemplate::new("{{ strftime_now('%Y|%d %b %Y') }}", &Value::Null).unwrap();
    let text = template.render(&[], false).unwrap();
    let (year, date) = text.split_once('|').unwrap();
    assert!(year.parse::<u32>().unwrap() >= 2024 && date.ends_with(year), "{text}");
    assert_eq!(date.len(), "01 Jan 2024".len(), "{text}");
}

#[test]
fn errors_are_typed() {
    let parse = ChatTemplate::new("{% if %}", &Value::Null);
    assert!(matches!(parse, Err(ChatError::Parse(_))));
    let template = ChatTemplate::new("{{ messages[0].a.b.c }}", &Value::Null).unwrap();
    let rendered = template.render_json(&json!([{}]), &json!({}));
    assert!(matches!(rendered, Err(ChatError::Render(_))), "{rendered:?}");
}

/// The published templates say the same where they say no more than the turns.
#[test]
fn turn_formats_are_those_of_the_published_templates() {
    let cases: Value = serde_json::from_str(include_str!("templates/cases.json")).unwrap();
    for (index, name) in [
        (2, "chatml"),
        (8, "chatml"),
        (9, "chatml"),
        (4, "gemma"),
        (5, "gemma"),
        (6, "gemma"),
        (7, "gemma"),
        (14, "llama3"),
    ] {
        let format = TurnFormat::named(name).unwrap();
        let template = ChatTemplate::new(format.template, &cases["special"]).unwrap();
        let case = &cases["cases"][index];
        let prompt = template.render_json(&case["messages"], &case["extra"]).unwrap();
        assert_eq!(prompt, case["text"].as_str().unwrap(), "{index} {name}");
        assert!(format.tokens.unwrap().iter().all(|token| prompt.contains(token)), "{name}");
    }
}
