"""The contract, clause by clause: steps of certain sizes, and what of them runs where."""

import re

import numpy as np
import pytest
import umbel
from umbel.adapters import linears
from umbel.errors import DeviceError
from umbel.models.builder import LORA
from umbel.state import Sequence
from umbel_kit.compare import nmse
from umbel_kit.models import write_adapter


@pytest.mark.parametrize("arch", ["llama", "mamba", "lfm2"])
def test_buckets(load, alike, ids, arch):
    """Steps have sizes that the toy takes; long prompts are cut; padding changes nothing."""
    model, host, ids = load(arch, parallel=6), load(arch, "host"), [*ids, *ids]
    rows = host.logits(ids)
    for n in (1, 3, 17, 63, 126):
        alike(rows[:n], model.logits(ids[:n]))
    runner, sequences = model.runner, [Sequence() for _ in range(5)]

    def decode():  # five sequences, padded to sixteen
        for i, sequence in enumerate(sequences):
            runner.forward(sequence, ids[i : i + 9])
        return runner.decode(sequences, ids[9:14])

    alone = [host.logits(ids[i : i + 10])[-1] for i in range(5)]
    alike(np.stack(alone), model.engine.call(decode))
    assert {s.n for s in runner._plans} <= {1, 4, 16, 64}
    assert {s.kv_length for s in runner._plans} <= {64, 256}
    assert max(s.sequences for s in runner._plans) == 16


def test_padding(load, ids):
    """Not a bit of a result depends on it: 11 and 13 tokens are both padded to 16."""
    model = load("llama")
    np.testing.assert_array_equal(model.logits(ids[:13])[:11], model.logits(ids[:11]))


def test_the_largest_bucket(found, file, ids):
    """It bounds the context that nobody asked for; a larger one is refused at load, with both
    numbers."""
    long = file("llama", context_length=1 << 13)
    with umbel.load(long, "toy") as model:
        assert model.ctx == 4096
    with umbel.load(file("bert"), "toy") as model:
        assert model.ctx == 64
        assert model.hidden(ids[:60]).shape == (60, 64)
    for path, ctx, most in ((long, 4097, 4096), (file("bert"), 65, 64)):
        with pytest.raises(DeviceError, match="cannot take so many") as caught:
            umbel.load(path, "toy", ctx=ctx)
        assert caught.value.expected == f"at most {most}"
        assert caught.value.do == "lower ctx"


def test_rows_written_after_the_step(load, alike, ids):
    """What cannot scatter has its rows written by the plan, and reads them in the next step."""
    model = load("llama")
    plan = model.runner.plan(model.runner.usual[0])
    assert [s.target.name for s in plan.steps] == ["host:0", "toy:0"]  # angles, and all else
    assert len(plan.row_writes) == 4  # keys and values of two layers
    reasons = {p.reason for p in plan.placement.nodes if p.origin == "attention.0"}
    assert any("the plan writes its rows: toy:0: it has no kernel" in r for r in reasons)
    with model.open() as session:
        rows = [session.feed([i]) for i in ids[:9]]
    alike(load("llama", "host").logits(ids[:9]), np.stack(rows))


def test_what_is_converted_is_told(load, caplog):
    """A line for the weights and one for what the host does; `strict` makes errors of them."""
    load("qwen3moe")
    assert re.search(r"converted for toy:0: \d+ tensors from f32 to f16", caplog.text)
    assert "toy:0 does not run everything: host:0 computes 2 top_k of" in caplog.text
    with pytest.raises(DeviceError, match="weights would be converted"):
        load("llama", strict=True)
    with pytest.raises(DeviceError, match="does not run on toy"):
        load("qwen3moe", strict=True)


@pytest.mark.parametrize(("arch", "devices"), [("llama", "host toy"), ("mamba", "toy")])
def test_one_split(load, arch, devices):
    """States are kept as the toy computes, so all that uses them is there; the angles of rope,
    which it cannot compute, follow from positions and are made before."""
    model = load(arch, kv="auto")
    runner = model.runner
    assert {t.dtype.name for t in runner.states.tensors.values()} == {"f16"}
    for step in runner.usual:
        plan = runner.plan(step)
        assert [s.target.device.backend for s in plan.steps] == devices.split()
        ahead = {p.node.op.name: p.reason for p in plan.placement.nodes if p.ahead}
        assert ahead == {} if arch == "mamba" else ahead.keys() == {"rope_cos_sin"}
        assert all(
            why == "decomposed: toy:0: it has no kernel for rope" for why in ahead.values()
        )


@pytest.mark.parametrize("arch", ["llama", "mamba"])
def test_adapters(load, alike, ids, tmp_path, arch):
    """LoRA factors are kept as the toy computes, so what uses them is there: no split more than
    without; the host's results, of sequences with and without."""
    bare = load(arch)
    lora = write_adapter(tmp_path / "lora.gguf", bare.runner.definition, 4)
    model, host = (load(arch, device, adapters=lora) for device in ("toy", "host"))
    states = model.runner.states.tensors
    assert {t.dtype.name for name, t in states.items() if name.startswith(LORA)} == {"f16"}

    def multiplied(plan):
        nodes = [p for p in plan.placement.nodes if p.node.op.name == "mul_mat"]
        assert {p.target.name for p in nodes} == {"toy:0"}
        return len(nodes)

    factors = 2 * len(linears(bare.runner.definition))
    for step, adapted in zip(bare.runner.usual, model.runner.usual, strict=True):
        assert adapted == step._replace(adapted=True)
        without, plan = bare.runner.plan(step), model.runner.plan(adapted)
        assert [s.target.name for s in without.steps] == [s.target.name for s in plan.steps]
        assert multiplied(without) + factors == multiplied(plan)
    rows, plain = host.logits(ids), host.logits(ids, adapters={})
    assert min(map(nmse, rows, plain)) > 1e-3
    alike(rows, model.logits(ids))
    alike(plain, model.logits(ids, adapters={}))
