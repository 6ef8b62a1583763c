"""OpenAI's endpoints, with OpenAI's own client."""

from __future__ import annotations

import json

import numpy as np
import openai
import pytest

HELLO = [{"role": "user", "content": "Once upon a time"}]
GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.fixture
def served(serving, talking):
    return serving(talking)


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def alone(model, prompt, **settings):
    """What the model writes by itself."""
    return model.generate(prompt, **settings).read()


def test_models(client):
    assert [m.id for m in client.models.list()] == ["test"]
    assert client.models.retrieve("test").object == "model"
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.models.retrieve("other")


def test_a_chat_is_what_the_model_writes(client, talking):
    ids = talking.chat_prompt(HELLO)
    wanted = alone(talking, ids, **GREEDY)
    answer = client.chat.completions.create(model="test", messages=HELLO, **GREEDY)
    (choice,) = answer.choices
    assert choice.message.content == wanted
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == len(ids) + 12


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_adds_up_to_the_same(client, usage):
    whole = client.chat.completions.create(model="test", messages=HELLO, **GREEDY)
    options = {"stream_options": {"include_usage": True}} if usage else {}
    stream = client.chat.completions.create(
        model="test", messages=HELLO, stream=True, **GREEDY, **options
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({c.id for c in chunks}) == 1
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == "length"
    assert not any(reasons[:-1])
    assert (chunks[-1].choices == []) is usage
    if usage:
        assert chunks[-1].usage.completion_tokens == 12
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
    assert all(c.usage is None for c in chunks[:-1])


def test_completions_of_texts_and_of_ids(client, talking):
    prompts = ["Once upon", "The little dog"]
    wanted = [alone(talking, p, **GREEDY) for p in prompts]
    answer = client.completions.create(model="test", prompt=prompts, **GREEDY)
    assert [c.text for c in answer.choices] == wanted
    assert answer.usage.completion_tokens == 24
    ids = talking.tokenize(prompts[0])
    one = client.completions.create(model="test", prompt=ids, **GREEDY)
    assert one.choices[0].text == wanted[0]
    several = client.completions.create(model="test", prompt=[ids, ids], **GREEDY)
    assert [c.text for c in several.choices] == [wanted[0]] * 2
    echoed = client.completions.create(model="test", prompt=ids, echo=True, **GREEDY)
    assert echoed.choices[0].text == f"Once upon{wanted[0]}"


def test_n_answers_with_seeds_that_count_up(client, talking):
    """Each is what it would be alone."""
    how = {"temperature": 2.0, "max_tokens": 8}
    more = {"top_k": 0, "min_p": 0, "top_p": 1}
    wanted = [alone(talking, "Once", seed=7 + i, **how, **more) for i in range(3)]
    how["extra_body"] = more
    answer = client.completions.create(model="test", prompt="Once", n=3, seed=7, **how)
    assert [c.text for c in answer.choices] == wanted
    stream = client.completions.create(
        model="test", prompt="Once", n=3, seed=7, stream=True, **how
    )
    texts = ["", "", ""]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == wanted
    assert len(set(wanted)) > 1


def test_settings_reach_the_sampler(client, talking):
    settings = {
        "temperature": 0.9,
        "top_p": 0.8,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "seed": 3,
        "max_tokens": 10,
    }
    more = {"top_k": 20, "min_p": 0.01, "repeat_penalty": 1.1}
    wanted = alone(talking, "Once", **settings, **more)
    got = client.completions.create(model="test", prompt="Once", extra_body=more, **settings)
    assert got.choices[0].text == wanted
    bias = {"300": 100}
    biased = client.completions.create(
        model="test", prompt="Once", logit_bias=bias, temperature=0, max_tokens=3
    )
    assert biased.choices[0].text == alone(
        talking, "Once", logit_bias={300: 100}, temperature=0, max_tokens=3
    )


def test_log_probabilities(client, talking):
    whole = talking.generate("Once", logprobs=3, **GREEDY)
    whole.read()
    chat = client.completions.create(model="test", prompt="Once", logprobs=3, **GREEDY)
    told = chat.choices[0].logprobs
    assert "".join(told.tokens).strip() == chat.choices[0].text.strip()
    wanted = [dict(pairs)[t] for t, pairs in zip(whole.tokens, whole.logprobs, strict=True)]
    assert np.allclose(told.token_logprobs, wanted)
    assert all(len(best) == 3 for best in told.top_logprobs)
    stream = client.chat.completions.create(
        model="test", messages=HELLO, logprobs=True, top_logprobs=2, stream=True, **GREEDY
    )
    content = [
        one
        for chunk in stream
        if chunk.choices and chunk.choices[0].logprobs
        for one in chunk.choices[0].logprobs.content
    ]
    assert len(content) == 12
    assert all(len(one.top_logprobs) == 2 for one in content)
    assert all(one.logprob == one.top_logprobs[0].logprob for one in content)  # greedy


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["own fox"], "br"),
        (["own fox", "own"], "br"),
        ("fox", "brown "),
        (["zebra"], "brown fox end"),
    ],
)
def test_stop_strings_over_tokens(serving, scripted, stream, stop, expected):
    """V01: nothing of it is shown, whole or in a stream."""
    model, script = scripted([258, 259, 260, 261], parallel=2)
    script.start = len(model.tokenize("go")) - 1
    url = f"{serving(model).url}/v1"
    with openai.OpenAI(base_url=url, api_key="none") as client:
        answer = client.completions.create(
            model="test", prompt="go", stop=stop, stream=stream, temperature=0
        )
        if stream:
            chunks = list(answer)
            text = "".join(c.choices[0].text for c in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            text, reason = answer.choices[0].text, answer.choices[0].finish_reason
    assert (text, reason) == (expected, "stop")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 25, 26])
def test_characters_of_several_tokens(serving, scripted, stream, n):
    """T03, T04: no half of one, whole or in a stream, also where the answer ends within."""
    said = "👨‍👩‍👧‍👦é歪".encode()
    model, script = scripted(list(said), parallel=2)
    script.start = len(model.tokenize("go")) - 1
    with serving(model).client() as client:
        body = {"prompt": "go", "temperature": 0, "max_tokens": n, "stream": stream}
        answer = client.post("/v1/completions", json=body)
    if stream:
        lines = [x for x in answer.text.splitlines() if x.startswith("data: {")]
        texts = [json.loads(x[6:])["choices"][0]["text"] for x in lines]
    else:
        texts = [answer.json()["choices"][0]["text"]]
    text = "".join(texts)
    whole = said[:n].decode("utf-8", "ignore")
    assert text in (whole, f"{whole}\N{REPLACEMENT CHARACTER}")
    assert all("\N{REPLACEMENT CHARACTER}" not in part for part in texts[:-1])


def test_json_by_schema(client):
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}, "name": {"enum": ["Tom", "Lily"]}},
        "required": ["age", "name"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "who", "schema": schema}}
    answer = client.chat.completions.create(
        model="test", messages=HELLO, response_format=wanted, max_tokens=200, temperature=0
    )
    made = json.loads(answer.choices[0].message.content)
    assert set(made) == {"age", "name"}
    assert made["name"] in ("Tom", "Lily")
    some = client.chat.completions.create(
        model="test",
        messages=HELLO,
        response_format={"type": "json_object"},
        max_tokens=120,
        extra_body={"json_schema": None},
    )
    assert some.choices[0].message.content.lstrip().startswith("{")


@pytest.mark.parametrize("coded", ["float", "base64"])
def test_embeddings(serving, load, coded):
    model = load("bert", ctx=64)
    texts = ["a", "the quick brown fox", "and then some more of it"]
    with openai.OpenAI(base_url=f"{serving(model).url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="test", input=texts, encoding_format=coded)
        one = client.embeddings.create(model="test", input=texts[1])
    assert [d.index for d in answer.data] == [0, 1, 2]
    values = [d.embedding for d in answer.data]
    if coded == "base64" and isinstance(values[0], str):
        import base64

        values = [np.frombuffer(base64.b64decode(v), "<f4") for v in values]
    assert np.allclose(np.array(values), model.embed(texts), atol=1e-5)
    assert np.allclose(one.data[0].embedding, model.embed([texts[1]])[0], atol=1e-5)
    assert answer.usage.prompt_tokens == sum(len(model.tokenize(t)) for t in texts)


def test_an_answer_is_accepted_back(client):
    """V12: the server's own message, unchanged, in the next request."""
    messages = list(HELLO)
    for _ in range(3):
        answer = client.chat.completions.create(model="test", messages=messages, **GREEDY)
        messages.append(answer.choices[0].message.model_dump())
        messages.append({"role": "user", "content": "go on"})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens_details.cached_tokens > 0


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_that_is_demanded(client, stream, choice):
    """By a model that has never seen one: the grammar sees to it."""
    answer = client.chat.completions.create(
        model="test",
        messages=HELLO,
        tools=[TOOL],
        tool_choice=choice,
        parallel_tool_calls=choice != "required",
        stream=stream,
        temperature=0,
        max_tokens=200,
    )
    if stream:
        name, arguments, reason = "", "", None
        for chunk in answer:
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.index == 0
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            reason = chunk.choices[0].finish_reason or reason
    else:
        (call,) = answer.choices[0].message.tool_calls
        name, arguments = call.function.name, call.function.arguments
        reason = answer.choices[0].finish_reason
        assert answer.choices[0].message.content is None
        assert call.id.startswith("call_")
    assert (name, reason) == ("weather", "tool_calls")
    assert json.loads(arguments)["city"] in ("Paris", "Rome")


def test_the_result_of_a_call_goes_back(client, talking):
    """The template knows no tools: they are described, and what they gave is told."""
    call = {"name": "weather", "arguments": '{"city": "Rome"}'}
    messages = [
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    answer = client.chat.completions.create(
        model="test", messages=messages, tools=[TOOL], temperature=0, max_tokens=4
    )
    assert answer.choices[0].finish_reason in ("length", "stop")
    bare = client.chat.completions.create(
        model="test", messages=HELLO, tools=[TOOL], tool_choice="none", **GREEDY
    )
    plain = client.chat.completions.create(model="test", messages=HELLO, **GREEDY)
    assert bare.choices[0].message.content == plain.choices[0].message.content
