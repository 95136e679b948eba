//! Ways to write the turns of a conversation, for models whose files bring no chat template: base
//! models, and GGUF files that lost it. The marks of families are those of their published templates.

use crate::tokenizer::Tokenizer;

/// How the turns of a conversation are written.
#[derive(Debug, PartialEq, Eq)]
pub struct TurnFormat {
    /// What the command line calls it.
    pub name: &'static str,
    /// The Jinja template.
    pub template: &'static str,
    /// The tokens that open and end a turn, where it has such.
    pub tokens: Option<[&'static str; 2]>,
    /// Text that shows that an answer is over, where no token does.
    pub stop: Option<&'static str>,
}

/// A conversation in plain text, which a base model continues as it does any other.
pub static PLAIN: TurnFormat = TurnFormat {
    name: "plain",
    template: "{% if messages[0].role == 'system' %}{{ messages[0].content }}\
        {% else %}This is a conversation between a user and a helpful assistant.{% endif %}\
        {% for message in messages %}{% if message.role != 'system' %}\
        {{ '\n\n' + message.role|capitalize + ': ' + message.content|trim }}\
        {% endif %}{% endfor %}\
        {% if add_generation_prompt %}{{ '\n\nAssistant:' }}{% endif %}",
    tokens: None,
    stop: Some("\n\nUser:"),
};

/// The formats of families.
pub static TURN_FORMATS: [TurnFormat; 3] = [
    TurnFormat {
        name: "chatml",
        template: "{% for message in messages %}\
            {{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\
            {% endfor %}\
            {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        tokens: Some(["<|im_start|>", "<|im_end|>"]),
        stop: None,
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
        tokens: Some(["<start_of_turn>", "<end_of_turn>"]),
        stop: None,
    },
    TurnFormat {
        name: "llama3",
        template: "{{ bos_token }}{% for message in messages %}\
            {{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}\
            {{ message.content|trim + '<|eot_id|>' }}{% endfor %}\
            {% if add_generation_prompt %}\
            {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        tokens: Some(["<|start_header_id|>", "<|eot_id|>"]),
        stop: None,
    },
];

impl TurnFormat {
    /// Every format, in the order of help texts.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        std::iter::once(&PLAIN).chain(&TURN_FORMATS)
    }

    pub fn named(name: &str) -> Option<&'static Self> {
        Self::all().find(|format| format.name == name)
    }

    /// The family's format whose tokens a vocabulary has. Whether the model was trained to use them
    /// is another matter: base models have them too.
    pub fn of(tokenizer: &Tokenizer) -> Option<&'static Self> {
        let has = |token: &&str| tokenizer.token_id(token).is_some();
        TURN_FORMATS.iter().find(|format| format.tokens.iter().flatten().all(has))
    }

    /// The token that ends a turn.
    pub fn end(&self) -> Option<&'static str> {
        self.tokens.map(|[_, end]| end)
    }
}
