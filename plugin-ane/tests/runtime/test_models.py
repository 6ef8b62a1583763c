"""Models on the strict profile give what the host gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import gguf
import numpy as np
import pytest
from umbel.errors import OptionError
from umbel_ane import profile

GREEDY: dict[str, Any] = {"max_tokens": 64, "temperature": 0}
STORY = "Once upon a time"
MODELS = ("gpt2", "llama", "qwen2", "qwen3")
CLOSE = 2e-2  # of the largest logit: float16 through all layers


def _oracle(oracles: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(oracles / f"{name}.npz") as arrays:
        return dict(arrays)


def _apart(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def test_a_story(load) -> None:
    """The host's text, in prefill and 64 steps of decode."""
    texts = [
        load("stories260K", device=d).generate(STORY, **GREEDY).read()
        for d in ("host", "ane:0")
    ]
    assert texts[1] == texts[0]


@pytest.mark.parametrize("name", MODELS)
def test_logits(load, oracles, name) -> None:
    """Of a prompt in one step, and token by token."""
    data, model = _oracle(oracles, name), load(name)
    assert _apart(model.logits(data["ids"]), data["ref"]) <= CLOSE
    with model.open() as session:
        rows = np.array([session.feed([int(i)]) for i in data["ids"][:6]])
    assert _apart(rows, data["ref"][:6]) <= CLOSE


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text(load, name) -> None:
    """The host's, or different from where its two best logits are as near as float16 rounds."""
    host, ane = load(name, device="host"), load(name)
    with host.open() as one, ane.open() as other:
        due, gap = host.tokenize(STORY), 0.0
        for _ in range(64):
            wanted, got = one.feed(due), other.feed(due)
            gap = float(np.abs(got - wanted).max())
            best = np.sort(wanted)[-2:]
            if wanted.argmax() != got.argmax():
                assert best[1] - best[0] <= 2 * gap
                assert gap <= CLOSE * np.abs(wanted).max()
            due = [int(wanted.argmax())]


def test_everything_runs_there(load) -> None:
    """Of a llama: nothing but lookups is left to the host."""
    model = load("stories260K")
    for step in model.runner.usual:
        assert model.runner.elsewhere(model.runner.plan(step)) == []


def test_prompts_here_and_answers_on_the_host(load, health) -> None:
    """Keys and values stay where they are, and the host reads them there."""
    wanted = load("stories260K", device="host").generate(STORY, **GREEDY).read()
    model = load("stories260K", device="host", prefill_device="ane:0")
    assert model.generate(STORY, **GREEDY).read() == wanted
    asked = "Once upon a time, there was a little girl named Lily. She loved to"
    plain = load("stories260K", device="host").generate(asked, **GREEDY).read()
    before = health()["dispatches"]
    assert model.generate(asked, **GREEDY).read() == plain
    assert health()["dispatches"] == before + 1


def test_embeddings(load, oracles) -> None:
    data = _oracle(oracles, "bert")
    assert _apart(load("bert").hidden(data["ids"]), data["ref"]) <= CLOSE


# adapters


def test_adapters_in_a_batch(load, oracles, health) -> None:
    """One step of two sequences: with the adapter, and without."""
    data = _oracle(oracles, "llama-lora")
    model = load("llama", adapters=oracles / "llama-lora.gguf")
    sessions, ids = [model.open(mix) for mix in (None, {})], data["ids"]
    for session in sessions:
        session.feed(ids[:8])
    sequences = [session._sequence for session in sessions]
    rows = model.engine.call(lambda: model.runner.decode(sequences, [int(ids[8])] * 2))
    for row, key in zip(rows, ("ref", "base"), strict=True):
        assert _apart(row, data[key][8]) <= CLOSE
    assert _apart(data["base"][8], data["ref"][8]) > 10 * CLOSE
    for session in sessions:
        session.close()


def test_an_adapter_is_swapped_without_a_compile(load, oracles, health) -> None:
    path, data = oracles / "llama-lora.gguf", _oracle(oracles, "llama-lora")
    model = load("llama", adapters=path)
    assert _apart(model.logits(data["ids"]), data["ref"]) <= CLOSE
    before = health()
    model.unload_adapter("llama-lora")
    model.load_adapter(path, "again")
    assert _apart(model.logits(data["ids"], adapters="again"), data["ref"]) <= CLOSE
    after = health()
    assert after["compiles"] == before["compiles"]
    assert after["programs"] == before["programs"]


# starting again

AGAIN = """
import json, sys, umbel
from umbel import plugins
with umbel.load(sys.argv[1], device="ane:0", ctx=128) as model:
    text = model.generate("Once upon a time", max_tokens=8, temperature=0).read()
    device = plugins.get().find("ane:0")
    told = dict(plugins.get().backends["ane"].status(device))
print(json.dumps({"text": text, "compiles": told["compiles"], "canaries": told["canaries"]}))
"""


@pytest.mark.parametrize("profile", ["orion-m4-macos15", "m4-macos27"])
def test_a_second_start_compiles_nothing(oracles, tmp_path, profile) -> None:
    """Where a load reads what is staged, too."""
    env = {**os.environ, "UMBEL_ANE_SIMULATOR": profile}
    env["XDG_CACHE_HOME"] = str(tmp_path)
    command = [sys.executable, "-c", AGAIN, str(oracles / "stories260K.gguf")]
    done = [
        json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout)
        for _ in range(2)
    ]
    first, second = (int(d["compiles"].split()[0]) for d in done)
    assert first > 0
    assert second == 0
    assert done[0]["text"] == done[1]["text"]
    assert done[1]["canaries"] == f"{first} passed, 0 failed"


# what goes wrong


def test_a_profile_that_does_not_exist(load, monkeypatch) -> None:
    """It is found, and says what is wrong when it is opened."""
    from umbel import plugins
    from umbel.errors import UmbelError

    monkeypatch.setenv("UMBEL_ANE_SIMULATOR", "m99")
    assert plugins.get().find("ane:0").simulated
    with pytest.raises(UmbelError, match="no such profile"):
        load("stories260K")


def test_compiles_are_counted(load, oracles, health, monkeypatch, tmp_path, caplog) -> None:
    """Where this process may not compile any more another one does, and it is said."""
    from umbel_ane.drivers.simulator import Simulator

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = load("stories260K", ubatch=16)
    wanted = load("stories260K", device="host").generate(STORY, **GREEDY).read()
    monkeypatch.setattr(Simulator, "compiles", property(lambda _: 119))
    assert model.generate(STORY, **GREEDY).read() == wanted
    assert "further ones are compiled in another process" in caplog.text
    assert health()["canaries"].endswith(", 0 failed")


@pytest.mark.parametrize("head", ["host", "ane"])
def test_a_head_with_more_tokens_than_channels(load, monkeypatch, head) -> None:
    """The logits are the host's, wherever it is computed; the table is what it is looked up in
    too."""
    given = profile.load("orion-m4-macos15")
    few = attrs.evolve(given, max_channels=256, max_dim=256)
    monkeypatch.setattr(profile, "load", lambda *_: few)
    name, ids = "stories260K", [1, 5, 9, 70, 200]
    wanted = load(name, device="host").logits(ids)
    model = load(name, options={"ane": {"head": head}})
    assert _apart(model.logits(ids), wanted) <= CLOSE
    runner = model.runner
    elsewhere = {p.node.op.name for s in runner.usual for p in runner.elsewhere(runner.plan(s))}
    assert ("mul_mat" in elsewhere) == (head == "host")


def test_an_adapter_beyond_float16_is_refused(load, oracles: Path, tmp_path: Path) -> None:
    """Where it enters; who uses another one goes on, and so it is after it was tried."""
    path = oracles / "llama-lora.gguf"
    read = gguf.GGUFReader(path)
    made = gguf.GGUFWriter(tmp_path / "big.gguf", "llama")
    made.add_string("general.type", "adapter")
    made.add_string("adapter.type", "lora")
    for tensor in read.tensors:
        values = tensor.data.astype(np.float32)
        scale = 1e-6 if tensor.name.endswith("lora_a") else 1e6
        made.add_tensor(tensor.name, values * np.float32(scale))
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    model = load("llama", adapters=path, adapter_slots=2)
    before = model.logits([1, 5, 9])
    with pytest.raises(OptionError, match="a value that its device cannot hold") as caught:
        model.load_adapter(tmp_path / "big.gguf")
    assert "lora_" in str(caught.value.where)
    assert model.adapters == ["llama-lora"]
    assert np.array_equal(model.logits([1, 5, 9]), before)
    on_host = load("llama", device="host", adapters=tmp_path / "big.gguf")
    assert np.isfinite(on_host.logits([1, 5, 9])).all()
