"""Folders of all architectures become files that compute what transformers did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import umbel
from umbel import gguf
from umbel.models import NAMES
from umbel.tools.convert import convert
from umbel.tools.convert.architectures import RECIPES

LOOSE = {"mamba": 2e-4, "mamba-bias-untied": 2e-4, "falcon-mamba": 2e-4, "mamba2": 2e-4}


def test_the_results_are_those_of_transformers(make, results, tmp_path, case):
    """Names, layouts and metadata are right when the numbers are."""
    out = tmp_path / "model.gguf"
    convert(make(case), out)
    expected = results(case)
    with umbel.load(out, device="host", ctx=len(expected["ids"])) as model:
        run = model.hidden if model.runner.encodes else model.logits
        actual = run(expected["ids"])[expected["rows"]]
    assert expected["ref"].shape == actual.shape
    assert np.abs(actual - expected["ref"]).max() <= LOOSE.get(case, 1e-4)
    assert np.ptp(expected["ref"], axis=1).min() > 0.5  # which a flat result would not show


def test_every_architecture_has_a_recipe_and_every_recipe_a_case(cases):
    """Nothing that can be run cannot be converted, and nothing is converted untested."""
    assert set(NAMES) == {recipe.arch for recipe in RECIPES.values()}
    tested = {case["config"]["architectures"][0] for case in cases.values()}
    assert set(RECIPES) - tested == {"BertForPreTraining"}  # the same with one head more


def test_a_name_may_stand_before_all_tensors_or_not(make, results, tmp_path):
    """GPT-2's own folder lacks the prefix that transformers writes, and has the masks."""
    folder = make("gpt2")
    out, other = tmp_path / "with.gguf", tmp_path / "without.gguf"
    convert(folder, out)
    stored = _arrays(folder)
    bare = {name.removeprefix("transformer."): value for name, value in stored.items()}
    bare["h.0.attn.bias"] = np.ones((1, 1, 64, 64), np.float32)
    make.tensors(folder, bare)
    convert(folder, other)
    assert _tensors(out) == _tensors(other)


def test_old_names_of_norms(make, tmp_path):
    """BERT's first folders call weight and bias of a norm gamma and beta."""
    folder = make("bert-masked")
    out, other = tmp_path / "new.gguf", tmp_path / "old.gguf"
    convert(folder, out)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in _arrays(folder).items()
    }
    make.tensors(folder, old)
    convert(folder, other)
    assert _tensors(out) == _tensors(other)


def test_several_files(make, tmp_path):
    """A folder in shards gives the same file."""
    folder = make("qwen3moe")
    out, other = tmp_path / "one.gguf", tmp_path / "many.gguf"
    convert(folder, out)
    arrays = _arrays(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(arrays)
    shards = {f"model-0000{n + 1}-of-00003.safetensors": names[n::3] for n in range(3)}
    for name, part in shards.items():
        make.tensors(folder, {tensor: arrays[tensor] for tensor in part}, name)
    index = {tensor: name for name, part in shards.items() for tensor in part}
    make.write(folder, "model.safetensors.index.json", {"weight_map": index})
    convert(folder, other)
    assert _tensors(out) == _tensors(other)


def test_a_tied_head_is_not_written_twice(make, tmp_path):
    """Where the configuration ties it, the head in the folder is the embedding again."""
    folder = make("llama", tie_word_embeddings=True)
    convert(folder, tmp_path / "out.gguf")
    assert "output.weight" not in _tensors(tmp_path / "out.gguf")


def test_a_head_of_its_own_counts_only_where_it_is_untied(make, tmp_path):
    """Where the configuration says nothing, the head of GPT-2 is its embedding all the same."""
    folder, out = make("gpt2"), tmp_path / "out.gguf"
    arrays = _arrays(folder)
    head = np.zeros_like(arrays["transformer.wte.weight"])
    make.tensors(folder, {**arrays, "lm_head.weight": head})
    config = json.loads((folder / "config.json").read_text())
    for tied, there in ((None, False), (True, False), (False, True)):
        make.write(folder, "config.json", {**config, "tie_word_embeddings": tied})
        convert(folder, out, force=True)
        assert ("output.weight" in _tensors(out)) is there


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def _tensors(path: Path) -> dict[str, bytes]:
    with gguf.open(path) as file:
        return {name: file.array(name).tobytes() for name in sorted(file.tensors)}
