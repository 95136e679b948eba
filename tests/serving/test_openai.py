"""The official openai package, unchanged."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "What is a hacker?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "roll",
        "description": "Rolls a die",
        "parameters": {
            "type": "object",
            "properties": {"sides": {"type": "integer", "enum": [6, 20]}},
            "required": ["sides"],
            "additionalProperties": False,
        },
    },
}


def ask(client, **options):
    return client.chat.completions.create(model="tiny", messages=QUESTION, temperature=0, **options)


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("gpt-4")
    assert error.value.code == "model_not_found"


def test_chat(client):
    answer = ask(client, max_tokens=20)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 20


def test_a_stream_is_the_same_text(client):
    whole = ask(client, max_tokens=24)
    chunks = list(ask(client, max_tokens=24, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_the_stream_helper_gathers_events(client):
    # The package takes an answer that ends at its length for an error; this one ends by itself.
    format = {"type": "json_schema", "json_schema": {"name": "word", "schema": {"enum": ["yes", "no"]}}}
    options = dict(model="tiny", messages=QUESTION, response_format=format, max_tokens=20)
    with client.chat.completions.stream(**options) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        assert "".join(deltas) == stream.get_final_completion().choices[0].message.content


def test_a_stream_that_is_left_frees_the_server(client):
    stream = ask(client, stream=True)
    next(iter(stream))
    stream.close()
    assert ask(client, max_tokens=2).usage.completion_tokens <= 2


def test_choices_seeds_and_log_probabilities(client):
    options = dict(model="tiny", messages=QUESTION, temperature=1.2, seed=3, n=3, max_tokens=12)
    first, second = (client.chat.completions.create(**options) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) > 1
    likely = ask(client, max_tokens=4, logprobs=True, top_logprobs=3)
    for token in likely.choices[0].logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob <= 0


def test_stop(client):
    words = ask(client, max_tokens=40).choices[0].message.content
    stop = words.split()[3]
    stopped = ask(client, max_tokens=40, stop=[stop])
    assert stopped.choices[0].message.content == words[: words.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_completions(client):
    options = dict(model="tiny", prompt="HAMLET.\nTo be", temperature=0, max_tokens=10)
    whole = client.completions.create(**options)
    streamed = client.completions.create(**options, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


class Hero(BaseModel):
    name: str
    age: int
    friends: list[str]


def test_structured_output(client):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "good": {"type": "boolean"}},
        "required": ["name", "good"],
        "additionalProperties": False,
    }
    format = {"type": "json_schema", "json_schema": {"name": "hero", "schema": schema, "strict": True}}
    answer = ask(client, response_format=format, max_tokens=100)
    hero = json.loads(answer.choices[0].message.content)
    assert len(hero["name"]) <= 8 and isinstance(hero["good"], bool)
    # A class of pydantic, which the package turns into a schema and back. Nothing bounds its texts,
    # and a small model may go on for ever, which the package reports.
    try:
        parsed = client.chat.completions.parse(
            model="tiny", messages=QUESTION, response_format=Hero, temperature=0, max_tokens=400
        )
        assert isinstance(parsed.choices[0].message.parsed, Hero)
    except openai.LengthFinishReasonError as error:
        assert error.completion.choices[0].message.content.startswith("{")


def test_tools(client):
    forced = {"type": "function", "function": {"name": "roll"}}
    answer = ask(client, tools=[TOOL], tool_choice=forced, max_tokens=60)
    assert answer.choices[0].finish_reason == "tool_calls"
    message = answer.choices[0].message
    call = message.tool_calls[0]
    assert call.function.name == "roll"
    assert json.loads(call.function.arguments)["sides"] in (6, 20)
    result = {"role": "tool", "tool_call_id": call.id, "content": "4"}
    messages = QUESTION + [message.model_dump(exclude_none=True), result]
    after = client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL], max_tokens=8)
    assert after.choices[0].finish_reason in ("stop", "length", "tool_calls")
    chunks = list(ask(client, tools=[TOOL], tool_choice="required", max_tokens=60, stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    # As OpenAI sends a call: its id and name, then pieces of its arguments.
    assert (calls[0].function.name, calls[0].function.arguments, calls[0].type) == ("roll", "", "function")
    assert calls[0].id and all(call.id is None and call.function.name is None for call in calls[1:])
    assert len(calls) > 3 and {call.index for call in calls} == {0}
    arguments = "".join(call.function.arguments for call in calls)
    assert json.loads(arguments)["sides"] in (6, 20)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_stream_helper_gathers_a_call(client):
    """The package's own gathering of deltas, and its events of arguments."""
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    options = dict(model="tiny", messages=QUESTION, tools=[strict], tool_choice="required", max_tokens=60)
    with client.chat.completions.stream(**options) as stream:
        pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        call = stream.get_final_completion().choices[0].message.tool_calls[0].function
    assert len([piece for piece in pieces if piece]) > 1
    assert "".join(pieces) == call.arguments and call.parsed_arguments["sides"] in (6, 20)


def test_tools_may_be_forbidden(client):
    plain = ask(client, max_tokens=12).choices[0].message
    message = ask(client, tools=[TOOL], tool_choice="none", max_tokens=12).choices[0].message
    assert message.tool_calls is None and message.content == plain.content
    free = ask(client, tools=[TOOL], tool_choice="auto", max_tokens=12)
    assert free.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_json_objects(client):
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=200)
    assert answer.choices[0].message.content.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_thoughts_are_apart_from_the_answer(start, tmp_path):
    """The template opens thoughts that the tiny model never closes."""
    template = tmp_path / "thinking.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n")
    client = start("--chat-template", str(template)).client()
    message = ask(client, max_tokens=16).choices[0].message
    assert message.content is None and message.reasoning_content
    deltas = [chunk.choices[0].delta for chunk in ask(client, max_tokens=16, stream=True)]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning_content
    assert not "".join(delta.content or "" for delta in deltas)
    options = dict(model="tiny", input="What is a hacker?", temperature=0, max_output_tokens=16)
    with client.responses.stream(**options) as stream:
        kinds = {event.type: event for event in stream}
    # The package's own last response is that of answers which end by themselves.
    final = kinds["response.incomplete"].response
    assert {"response.reasoning_text.delta", "response.reasoning_text.done"} <= set(kinds)
    assert final.output[0].type == "reasoning" and final.output_text == ""
    assert 8 < final.usage.output_tokens_details.reasoning_tokens <= final.usage.output_tokens
    plain = start("--chat-template", str(template), "--reasoning-format", "none").client()
    assert ask(plain, max_tokens=16).choices[0].message.content.strip() == message.reasoning_content


def test_responses_continue_each_other(client):
    options = dict(model="tiny", temperature=0, max_output_tokens=12)
    first = client.responses.create(input="What is a bug?", instructions="Be brief.", **options)
    assert first.output_text and first.instructions == "Be brief."
    second = client.responses.create(input="And a hack?", previous_response_id=first.id, **options)
    assert second.instructions == "Be brief." and second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert client.responses.retrieve(second.id).output_text == second.output_text
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError) as error:
        client.responses.create(input="More.", previous_response_id=second.id, **options)
    assert f"previous_response_id '{second.id}' not found or expired" in str(error.value)


def test_responses_stream(client):
    format = {"type": "json_schema", "name": "word", "schema": {"enum": ["yes", "no"]}}
    options = dict(model="tiny", input="Is it?", temperature=0, max_output_tokens=20, text={"format": format})
    with client.responses.stream(**options) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == client.responses.create(**options).output_text


def test_responses_stream_a_call(client):
    tool = {"type": "function", "strict": True, **TOOL["function"]}
    options = dict(model="tiny", input="Roll.", tools=[tool], tool_choice="required", max_output_tokens=60)
    with client.responses.stream(**options) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        call = stream.get_final_response().output[0]
    assert len(pieces) > 1 and "".join(pieces) == call.arguments
    assert json.loads(call.arguments)["sides"] in (6, 20)


def test_responses_call_tools(client):
    tool = {"type": "function", "strict": True, **TOOL["function"]}
    answer = client.responses.create(
        model="tiny", input="Roll.", tools=[tool], tool_choice="required", max_output_tokens=60
    )
    call = answer.output[0]
    assert (call.type, call.name) == ("function_call", "roll")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "4"}
    after = client.responses.create(
        model="tiny", input=[result], previous_response_id=answer.id, max_output_tokens=6
    )
    assert after.output[0].type == "message"


def test_errors_are_the_packages_own(client, start):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, extra_body={"temperature": "hot"})
    assert error.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x " * 5000}])
    assert error.value.code == "context_length_exceeded"
    closed = start("--api-key", "secret")
    with pytest.raises(openai.AuthenticationError):
        closed.client(api_key="wrong").models.list()
    assert closed.client(api_key="secret").models.list().data
    full = start("--queue", "0")
    with pytest.raises(openai.RateLimitError) as error:
        ask(full.client())
    assert error.value.code == "queue_full"


def test_answers_together_are_those_alone(client):
    def greedy(words):
        messages = [{"role": "user", "content": words}]
        answer = client.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=24)
        return answer.choices[0].message.content

    words = ["Who is there?", "What is a bug?", "Speak of Hamlet and of his father's ghost."]
    alone = [greedy(text) for text in words]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(greedy, words * 4)) == alone * 4


def test_a_durable_store_survives_restart_and_kill(start, tmp_path):
    store = ("--store", str(tmp_path / "responses.redb"))
    options = dict(model="tiny", temperature=0, max_output_tokens=4)
    server = start(*store)
    first = server.client().responses.create(input="One.", **options)
    server.stop()
    server = start(*store)
    second = server.client().responses.create(input="Two.", previous_response_id=first.id, **options)
    server.process.kill()
    server.process.communicate()
    server = start(*store)
    third = server.client().responses.create(input="Three.", previous_response_id=second.id, **options)
    assert third.usage.input_tokens > second.usage.input_tokens


def test_nothing_that_is_said_is_logged(start):
    server = start("-vv")
    messages = [{"role": "user", "content": "my secret is quicksilver"}]
    server.client().chat.completions.create(model="tiny", messages=messages, max_tokens=4)
    server.client().responses.create(model="tiny", input="my secret is quicksilver", max_output_tokens=4)
    log = server.stop()
    assert "/v1/chat/completions" in log and "status=200" in log
    assert "quicksilver" not in log


def test_prompts_are_logged_when_asked_for(start):
    server = start("-v", "--set", "log.prompts=1")
    server.client().completions.create(model="tiny", prompt="quicksilver", max_tokens=1)
    assert "quicksilver" in server.stop()
