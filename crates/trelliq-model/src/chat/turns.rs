//! The turn formats of model families, for models whose files bring no chat template.
//!
//! A base model's tokenizer often has the tokens of its family's turns all the same, and GGUF files
//! lose their template on the way. The marks are those of the families' published templates.

use crate::tokenizer::Tokenizer;

/// How a family writes the turns of a conversation.
#[derive(Debug, PartialEq, Eq)]
pub struct TurnFormat {
    /// What the command line calls it.
    pub name: &'static str,
    /// The Jinja template.
    pub template: &'static str,
    /// The token that opens a turn.
    pub start: &'static str,
    /// The token that ends a turn, and so an answer.
    pub end: &'static str,
}

/// Every format that is known.
pub static TURN_FORMATS: [TurnFormat; 3] = [
    TurnFormat {
        name: "chatml",
        template: "{% for message in messages %}\
            {{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\
            {% endfor %}\
            {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        start: "<|im_start|>",
        end: "<|im_end|>",
    },
    // Gemma knows no system turn: its text opens the turn that follows.
    TurnFormat {
        name: "gemma",
        template: "{{ bos_token }}{% set ns = namespace(system='') %}{% for message in messages %}\
            {% if message.role == 'system' %}{% set ns.system = message.content + '\n\n' %}{% else %}\
            {% set role = 'model' if message.role == 'assistant' else message.role %}\
            {{ '<start_of_turn>' + role + '\n' + ns.system + message.content|trim + '<end_of_turn>\n' }}\
            {% set ns.system = '' %}{% endif %}{% endfor %}\
            {% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        start: "<start_of_turn>",
        end: "<end_of_turn>",
    },
    TurnFormat {
        name: "llama3",
        template: "{{ bos_token }}{% for message in messages %}\
            {{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}\
            {{ message.content|trim + '<|eot_id|>' }}{% endfor %}\
            {% if add_generation_prompt %}\
            {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        start: "<|start_header_id|>",
        end: "<|eot_id|>",
    },
];

impl TurnFormat {
    pub fn named(name: &str) -> Option<&'static Self> {
        TURN_FORMATS.iter().find(|format| format.name == name)
    }

    /// The format whose tokens a vocabulary has.
    pub fn of(tokenizer: &Tokenizer) -> Option<&'static Self> {
        TURN_FORMATS.iter().find(|format| {
            [format.start, format.end].iter().all(|token| tokenizer.token_id(token).is_some())
        })
    }
}
