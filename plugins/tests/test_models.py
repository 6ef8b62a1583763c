"""The writer of tiny models: for the built-in architectures, and for one of a plugin's."""

from contextlib import closing
from typing import Any

import pytest
from umbel.gguf import open as open_file
from umbel.models import NAMES, ModelDefinition, StateShape, StepShape
from umbel.models import architecture as built_in
from umbel.ops import OPS
from umbel_kit.conformance import test_models as suite
from umbel_kit.models import KEYS, N_EMBD, N_VOCAB, write_model

PLUGIN = '''
"""An architecture of a plugin's: gated units after an embedding, and a key of its own."""
from umbel.hookspecs import hookimpl
from umbel.models import Architecture

UMBEL_API = 1
MODELS = {"tulip": {"petal.count": 3}}


def build(b):
    x, keys = b.embed(), b.hparams.meta
    for i in range(keys.count("petal.count")):
        y = b.norm_rms(x, f"petal.{i}.norm")
        gate, up = (b.linear(y, f"petal.{i}.{part}", 48) for part in ("gate", "up"))
        x = b.add(x, b.linear(b.swiglu(gate, up), f"petal.{i}.down", b.hparams.n_embd))
    return b.logits(b.norm_rms(b.asked(x), "output_norm"))


@hookimpl
def architectures():
    return [Architecture("tulip", build)]
'''
LOADED = """
from pathlib import Path
import numpy as np, umbel, tulip_plugin
from umbel.ops import OPS
from umbel_kit.models import write_model
(tulip,) = tulip_plugin.architectures()
path = write_model(Path("tulip.gguf"), tulip, OPS, petal__count=3)
with umbel.load(path, "host", ctx=32) as model:
    logits = model.logits([5, 6, 7])
    print(logits.shape, np.isfinite(logits).all(), np.ptp(logits) > 0.1)
"""


def test_all_architectures():
    """The suite and the writer know those of the core, all of them."""
    assert sorted(KEYS) == NAMES
    assert sorted(suite.NAMES) == NAMES
    assert all(built_in(n).pooled == (n not in suite.DECODERS) for n in NAMES)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0", "q4_0"])
def test_dtypes(tmp_path, dtype):
    """Matrices are of the dtype that was asked for; norms and vectors are float32."""
    path = write_model(tmp_path / "a.gguf", built_in("llama"), OPS, dtype=dtype)
    with closing(open_file(path)) as file:
        kinds = {n: (len(t.shape), t.dtype.name) for n, t in file.tensors.items()}
    assert {d for axes, d in kinds.values() if axes > 1} == {dtype}
    assert {d for axes, d in kinds.values() if axes == 1} == {"f32"}


def test_the_same_twice(tmp_path):
    """A model is drawn anew and is the same."""
    one, two = (write_model(tmp_path / n, built_in("mamba"), OPS) for n in ("a", "b"))
    assert one.read_bytes() == two.read_bytes()


def test_optional_tensors(tmp_path):
    """`has` says which of the optional tensors there are; keys can be given."""
    arch = built_in("qwen2")
    path = write_model(tmp_path / "a", arch, OPS, has=r".*ffn_gate\.weight", block_count=1)
    with closing(open_file(path)) as file:
        names = set(file.tensors)
        assert file.metadata["qwen2.block_count"] == 1
    assert "blk.0.ffn_gate.weight" in names
    assert not [n for n in names if n.startswith("blk.1.") or n.endswith(".bias")]


def test_of_a_plugin(tmp_path):
    """All that an architecture names is written, whoever it is of."""
    module: dict[str, Any] = {}
    exec(PLUGIN, module)
    (tulip,) = module["architectures"]()
    path = write_model(tmp_path / "tulip.gguf", tulip, OPS, petal__count=2)
    with closing(open_file(path)) as file:
        shapes = {name: t.shape for name, t in file.tensors.items()}
        parts = ("norm", "gate", "up", "down")
        petals = {f"petal.{i}.{part}.weight" for i in range(2) for part in parts}
        ends = {"token_embd.weight", "output.weight", "output_norm.weight"}
        assert set(shapes) == petals | ends
        assert shapes["petal.1.down.weight"] == (N_EMBD, 48)
        assert shapes["token_embd.weight"] == (N_VOCAB, N_EMBD)
        model = ModelDefinition(file, tulip, OPS)
        made = model.graph(StepShape(3, 1, 256, 2), StateShape(8, 4))
        assert made.graph.outputs[0].shape == (2, N_VOCAB)


def test_loaded(install, run):
    """Such a model loads by its name alone, where the plugin is installed."""
    ran = run("-c", LOADED, path=install("tulip", PLUGIN))
    assert ran.stdout.split("\n")[0] == f"(3, {N_VOCAB}) True True", ran.stderr


def test_in_the_suite(install, suite):
    """Named in a module of cases, it goes through the tests of models."""
    folder = install("tulip", PLUGIN)
    ran = suite("--umbel-cases", "tulip_plugin", "-k", "tulip", "-vv", path=folder)
    assert ran.returncode == 0, ran.stdout
    for name in (
        "test_prefill[tulip-q4_0]",
        "test_decode[",
        "test_two_sequences[",
        "test_cancelled[",
    ):
        assert any(name in line and "tulip" in line for line in ran.stdout.splitlines()), name
