"""What people script against llama-server, and what tells of the server itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

LORA = Path(__file__).parents[2] / "data" / "oracles" / "llama-lora.gguf"


@pytest.fixture
def served(serving, talking):
    return serving(talking)


@pytest.fixture
def client(served):
    with served.client() as made:
        yield made


def test_props_and_slots(client, talking):
    told = client.get("/props").json()
    assert told["total_slots"] == 4
    assert told["default_generation_settings"]["n_ctx"] == 512
    assert told["chat_template"] == talking.chat_template.source
    assert "/" not in told["model_path"]
    assert (told["bos_token"], told["eos_token"]) == ("<s>", "</s>")
    assert [s["is_processing"] for s in client.get("/slots").json()] == [False] * 4


def test_tokens_there_and_back(client, talking):
    text = "Once upon a time, é 歪"
    ids = client.post("/tokenize", json={"content": text}).json()["tokens"]
    assert ids == talking.tokenizer.encode(text, special=True, bos=False, eos=False)
    first = client.post("/tokenize", json={"content": text, "add_special": True}).json()
    assert first["tokens"] == talking.tokenize(text)
    assert client.post("/detokenize", json={"tokens": ids}).json()["content"].strip() == text
    pieces = client.post("/tokenize", json={"content": text, "with_pieces": True}).json()
    assert [p["id"] for p in pieces["tokens"]] == ids
    assert client.post("/detokenize", json={"tokens": [10**7]}).status_code == 400


def test_the_template(client):
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    prompt = client.post("/apply-template", json=body).json()["prompt"]
    assert prompt.endswith("[user]Hi[assistant]")


@pytest.mark.parametrize("stream", [False, True])
def test_completion(client, talking, stream):
    wanted = talking.generate("Once upon", max_tokens=6, temperature=0).read()
    body = {"prompt": "Once upon", "n_predict": 6, "temperature": 0, "stream": stream}
    answer = client.post("/completion", json={**body, "n_probs": 2})
    if stream:
        told = [json.loads(x[6:]) for x in answer.text.splitlines() if x.startswith("data: {")]
        assert "".join(t["content"] for t in told) == wanted
        last = told[-1]
        assert [t["stop"] for t in told[:-1]] == [False] * (len(told) - 1)
    else:
        last = answer.json()
        assert last["content"] == wanted
        assert len(last["completion_probabilities"]) == 6
    assert (last["stop"], last["stop_type"], last["tokens_predicted"]) == (True, "limit", 6)
    assert set(last["timings"]) >= {
        "prompt_n",
        "predicted_n",
        "predicted_per_second",
        "cache_n",
    }


def test_how_a_completion_stopped(serving, scripted):
    model, script = scripted([258, 259, 260, 261])
    script.start = len(model.tokenize("go")) - 1
    with serving(model).client() as client:
        body = {"prompt": "go", "temperature": 0}
        by_end = client.post("/completion", json=body).json()
        by_word = client.post("/completion", json={**body, "stop": ["fox"]}).json()
    assert (by_end["stop_type"], by_end["content"]) == ("eos", "brown fox end")
    assert (by_word["stop_type"], by_word["stopping_word"]) == ("word", "fox")


@pytest.mark.parametrize("keep", [0, 3, -1])
def test_a_context_that_is_shifted(serving, load, keep):
    """K06, V08: it ends at n_predict, whatever n_keep is."""
    with serving(load("llama", ctx=32)).client() as client:
        body = {
            "prompt": [1, 2, 3, 4],
            "n_predict": 60,
            "n_keep": keep,
            "context_shift": True,
            "temperature": 0,
            "logit_bias": [[2, False]],
        }
        told = client.post("/completion", json=body).json()
        assert (told["tokens_predicted"], told["truncated"]) == (60, True)
        for bad in ({"n_keep": -2}, {"n_discard": -1}, {"n_keep": 2**63}):
            assert client.post("/completion", json={**body, **bad}).status_code == 400


def test_adapters(serving, load):
    """E12: [] is the model as it is, no field what everybody gets; unknown ones are refused."""
    model = load("llama", parallel=2, adapters={str(LORA): 1.0})
    plain, adapted = (
        model.generate([1, 2, 3, 4], max_tokens=8, temperature=0, adapters=a).read()
        for a in ({}, None)
    )
    assert plain != adapted
    body = {"prompt": [1, 2, 3, 4], "n_predict": 8, "temperature": 0}
    with serving(model).client() as client:

        def says(**more):
            return client.post("/completion", json={**body, **more}).json()["content"]

        (one,) = client.get("/lora-adapters").json()
        assert (one["id"], one["name"], one["scale"]) == (0, "llama-lora", 1.0)
        assert says() == adapted
        assert says(lora=[]) == says(lora=[{"id": 0, "scale": 0}]) == plain
        assert says(adapters={"llama-lora": 1.0}) == adapted
        twice = [{"id": 0, "scale": 1}, {"id": 0, "scale": 1}]
        for bad in ([{"id": 7}], twice, [{"id": -1}], "all"):
            assert client.post("/completion", json={**body, "lora": bad}).status_code == 400
        changed = client.post("/lora-adapters", json=[{"id": 0, "scale": 0.0}])
        assert changed.json() == {"success": True}
        assert says() == plain
        assert says(lora=[{"id": 0, "scale": 1.0}]) == adapted


def test_metrics(client):
    for _ in range(2):
        body = {"prompt": "Once upon a time. " * 8, "max_tokens": 5}
        client.post("/v1/completions", json=body)
    lines = client.get("/metrics").text.splitlines()
    values = {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if line[0] != "#"
    }
    of = '{model="test"}'
    assert values[f"llamacpp:tokens_predicted_total{of}"] == 10
    assert values[f"llamacpp:prompt_tokens_total{of}"] > 10
    assert values[f"umbel_prompt_tokens_cached_total{of}"] > 0
    assert values[f"umbel_time_to_first_token_seconds_count{of}"] == 2
    assert values[f"llamacpp:requests_processing{of}"] == 0
    assert values['umbel_answers_total{model="test",reason="length"}'] == 2
    assert values['umbel_cells{model="test",state="cached"}'] > 0


def test_devices_and_what_they_do(client, served):
    told = client.get("/api/devices").json()["devices"]
    assert "host:0" in [d["name"] for d in told]
    assert isinstance(client.get("/api/host/status").json()["host:0"], dict)
    client.post("/v1/completions", json={"prompt": "Once upon a time. " * 8, "max_tokens": 5})
    (model,) = client.get("/api/live").json()["models"]
    assert model["id"] == "test"
    assert model["decode_tokens_per_second"] == 1.0  # 5 in 5 seconds
    assert model["cells"]["total"] == 2048
    assert 0 < model["cells"]["cached"] <= model["cells"]["used"]
    assert (model["running"], model["waiting"]) == (0, 0)
