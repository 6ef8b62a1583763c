"""Clause by clause: the contract between core and backends, on the two examples.

`umbel_toy` has every awkward trait of a real accelerator; what a clause promises is proven on
it. Operations that watch, wait or fail are kernels that the tests bring for the toy.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import umbel
from umbel import cli, plugins
from umbel.errors import DeviceError, OptionError, OutOfMemoryError
from umbel.gguf.types import BY_NAME, F32, dequantise, quantise
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Kernel, SplitGraph, hookimpl
from umbel.models import architecture
from umbel.ops import OPS
from umbel.plan import Arenas, Placer, Plan, States, Target, make
from umbel.plugins import Plugins
from umbel.state import Sequence
from umbel_kit import models as kit_models
from umbel_kit.compare import nmse
from umbel_kit.models import KEYS, write_model
from umbel_kit.planned import fault_of_decomposition
from umbel_toy.memory import Memory, Piece

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = {"toy": "toy-accelerator", "relu_sqr": "extra-operation"}
MEMORY = 1 << 24
IDS = np.random.default_rng(7).integers(3, 256, 63).tolist()
LIMIT = 3e-4  # NMSE of a row of logits: float16 rounds in every layer


@pytest.fixture(autouse=True, scope="session")
def installed():
    lacking = NAMES.keys() - {entry.name for entry in entry_points(group="umbel")}
    if lacking:
        folders = " ".join(f"./plugins/examples/{NAMES[name]}" for name in sorted(lacking))
        pytest.fail(f"these tests need the examples: pip install {folders}")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugins]:
    """The examples and the host, as a new process finds them."""
    made = Plugins("toy,relu_sqr")
    monkeypatch.setattr(plugins, "_process", made)
    yield made
    made.close()
    assert not _toys()


@pytest.fixture
def toy(found: Plugins) -> Target:
    return found.open(found.find("toy"), {"toy": {"memory": MEMORY}})


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """file(architecture, **settings): a tiny model."""
    folder = tmp_path_factory.mktemp("models")

    def written(arch: str, **settings: Any) -> Path:
        path = folder / f"{arch}-{'-'.join(map(str, settings.values()))}.gguf"
        return path if path.exists() else write_model(path, architecture(arch), OPS, **settings)

    return written


@pytest.fixture
def load(found: Plugins, file: Callable[..., Path]) -> Iterator[Callable[..., umbel.Model]]:
    """load(architecture, device, **settings): a tiny model, closed after the test."""
    with contextlib.ExitStack() as stack:

        def loaded(arch: str, device: str = "toy", **settings: Any) -> umbel.Model:
            given = {"ctx": 128, "parallel": 3, **settings}
            given["options"] = {"toy": {"memory": MEMORY}}
            return stack.enter_context(umbel.load(file(arch), device, **given))

        yield loaded


@pytest.fixture
def meddle(found: Plugins) -> Callable[[str, Callable[[], object]], None]:
    """meddle(operation, first): the toy calls `first` before it computes `operation`."""

    def meddled(operation: str, first: Callable[[], object]) -> None:
        def run(node: Tensor, *arrays: np.ndarray) -> np.ndarray:
            first()
            assert node.op is not None
            return node.op.reference(*arrays, **node.attrs)

        made = ModuleType("umbel_meddler")
        kernel = Kernel(operation, lambda node: None, run)
        vars(made).update(UMBEL_API=1, kernels=hookimpl(lambda device: [kernel]))
        found.add("meddler", made)

    return meddled


@pytest.fixture
def graphs(found: Plugins) -> list[SplitGraph]:
    """The splits that the toy was told to compute."""
    found.load()
    backend, told = found.backends["toy"], []
    compute = backend.graph_compute
    backend.graph_compute = lambda device, graph: (told.append(graph), compute(device, graph))
    return told


def _toys() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "toy"]


def _plan(found: Plugins, targets: list[Target], op: str, n: int = 1) -> Plan:
    """One operation over inputs `x0`, `x1` ... of (2, 5)."""
    build = Builder(OPS | {o.name: o for _, brought in found.ask("ops") for o in brought})
    inputs = [build.leaf(Role.INPUT, f"x{i}", (2, 5), F32) for i in range(n)]
    graph = build.graph([getattr(build, op)(*inputs)])
    weights: Any = None
    return make(graph, Placer(targets, build.ops), weights, States(), Arenas())


def _free(found: Plugins, *, collect: bool = True) -> int:
    if collect:
        gc.collect()
    status = found.backends["toy"].status(found.find("toy"))
    assert status["programs"] == 0
    return status["memory_free"]


def _close(expected: np.ndarray, actual: np.ndarray) -> None:
    assert expected.shape == actual.shape
    assert max(map(nmse, expected, actual)) < LIMIT


# what there is, before and around `open`


def test_sizes():
    """They are there to be read."""
    most = {"extra-operation": 60, "toy-accelerator": 300}
    for name, lines in most.items():
        files = [f for f in (EXAMPLES / name).rglob("*.py") if "build" not in f.parts]
        assert 0 < sum(len(f.read_text().splitlines()) for f in files) <= lines


def test_nothing_begins_before_open():
    """Neither the import nor `devices()` starts the machine's thread."""
    code = "import threading, umbel_toy; print(umbel_toy.devices()[0].name, end=' ')"
    code += "; print(threading.active_count())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "toy:0 1\n"


def test_open_close_and_open_again(found):
    """One machine at a time; options are parsed, kept and refused."""
    device = found.find("toy")
    assert found.open(device).info.memory_total == 1 << 30
    assert found.open(device, {"toy": {"memory": "1073741824"}}) is found.open(device)
    assert len(_toys()) == 1
    for bad, why in (("7", "already open"), ("much", "cannot be 'much'")):
        with pytest.raises(OptionError, match=why):
            found.open(device, {"toy": {"memory": bad}})
    found.close()
    assert not _toys()
    assert found.open(device, {"toy": {"memory": 4096}}).info.memory_free == 4096


def test_asked_while_closed(found):
    """`status`, `cancel` and `forget` may come at any time."""
    device = found.find("toy")
    toy = found.backends["toy"]
    assert toy.status(device) == {}
    assert toy.cancel(device) is toy.forget(device, 1) is None


def test_a_simulated_device_is_named_or_not_taken(found):
    assert found.find("auto").name == "host:0"
    assert found.find("toy").title == "toy:0 (simulated)"


def test_commands(found, toy, capsys):
    """Status, findings and the command of its own come to the command line."""
    for command, expected in (
        ("devices", "memory_free 16.0 MiB, programs 0"),
        ("doctor", "the toy is made of software and works everywhere"),
        ("toy", "set_rows\nkv_attention\n"),
    ):
        assert cli.main([command]) == 0
        assert expected in capsys.readouterr().out


# kernels and operations from another distribution


def test_kernel_for_somebody_elses_device(found, toy):
    """The toy takes the operation whole and computes it by the kernel; so does no other."""
    import umbel_toy
    from umbel_relu_sqr import kernels, toy_kernel

    host = found.open(found.find("host"))
    assert umbel_toy._open["toy:0"].kernels["relu_sqr"].run is toy_kernel
    assert kernels(host.device) == []
    x = np.array([[-3, -1, 0, 2, 300]] * 2, np.float32)
    for targets, last in (([toy, host], np.inf), ([host], 90000)):  # beyond float16
        plan = _plan(found, targets, "relu_sqr")
        assert [p.node.op.name for p in plan.placement.nodes] == ["relu_sqr"]
        (got,) = plan.run({"x0": x})
        assert got[1].tolist() == [0, 0, 0, 4, last]


def test_operation_without_its_kernel():
    """Where nobody brings a kernel the decomposition is placed, and right."""
    from umbel_relu_sqr import RELU_SQR
    from umbel_relu_sqr.cases import CASES

    alone = Plugins("toy")
    toy, host = (alone.open(alone.find(name)) for name in ("toy", "host"))
    ops = OPS | {"relu_sqr": RELU_SQR}
    try:
        for case in CASES[:-1]:
            assert fault_of_decomposition(case, toy, host, ops) == ""
    finally:
        alone.close()


@pytest.mark.parametrize("device", ["host", "toy"])
def test_conformance(device):
    """The suite takes the cases of the operation's own, whole and in pieces."""
    command = [sys.executable, "-m", "pytest", "--pyargs", "umbel_kit.conformance", "-vv"]
    command += ["-k", "relu_sqr", "-p", "no:cacheprovider", "--umbel-device", device]
    command += ["--umbel-cases", "umbel_relu_sqr.cases"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=EXAMPLES)
    assert ran.returncode == 0, ran.stdout
    assert "skipped" not in ran.stdout
    assert ran.stdout.count("test_operation[relu_sqr") > 3
    assert ran.stdout.count("test_composite[relu_sqr") > 3


# memory


def test_the_host_sees_nothing(found, toy):
    """No mapping, no sharing, no copy by itself; fresh memory is junk."""
    kind, host = toy.buffer_type, found.open(found.find("host"))
    buffer = kind.allocate(300, "compute")
    assert not kind.is_host
    assert not host.reads(toy)
    with pytest.raises(RuntimeError, match="cannot see"):
        buffer.map("r")
    assert not buffer.copy_from(0, host.buffer_type.allocate(300, "compute"), 0, 300)
    assert set(buffer.read(0, 300)) == {0xFF}
    buffer.write(7, np.arange(3, dtype=np.int32))
    assert buffer.read(7, 12).view(np.int32).tolist() == [0, 1, 2]


@pytest.mark.parametrize("shape", [(2, 32), (64,)])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0", "i32"])
def test_weights_as_they_are_accepted(toy, name, shape):
    """`store` keeps what `accepts` says, of vectors and of matrices; `read` gives it back."""
    dtype, kind = BY_NAME[name], toy.buffer_type
    values = np.arange(64, dtype=np.float32).reshape(shape)
    array = values.astype(np.int32) if name == "i32" else quantise(values, dtype)
    weight = Tensor(shape, dtype, Role.WEIGHT, "w")
    stored, accepted = kind.store(weight, array), kind.accepts(weight)
    assert accepted.name == ("i32" if name == "i32" else "f16" if len(shape) > 1 else "f32")
    got = stored.read(0, stored.nbytes).view(accepted.numpy).reshape(shape)
    whole = array if name == "i32" else dequantise(array, dtype).astype(accepted.numpy)
    np.testing.assert_array_equal(whole, got)


def test_weights_that_do_not_fit(found, toy, load, file, monkeypatch):
    """What would become infinite is refused, with the names of weight and device; a vector is
    float32 there, and fits."""
    values = kit_models._values

    def large(name, shape, rng):
        return values(name, shape, rng) * (1e6 if name == chosen else 1)

    monkeypatch.setattr(kit_models, "_values", large)
    chosen = "blk.0.ffn_norm.weight"
    umbel.load(file("llama", large=1), "toy", ctx=64).close()
    chosen = "blk.1.ffn_down.weight"
    with pytest.raises(DeviceError, match="too large for f16") as caught:
        umbel.load(file("llama", large=2), "toy", ctx=64)
    assert caught.value.where == f"{chosen} on toy:0"
    assert _free(found) == MEMORY


def test_layout(load, graphs):
    """An opaque split has slots for what enters, leaves or stays, with padding and alignment;
    the machine spoils the padding, and no value suffers."""
    model = load("llama", kv="f32")  # attention is the host's: several splits
    _close(load("llama", "host").logits(IDS), model.logits(IDS))
    kind = model.runner.targets[0].buffer_type
    assert len(graphs) > 2
    for graph in graphs:
        at_the_edge = {t.storage for t in (*graph.inputs, *graph.outputs)}
        assert set(graph.slots) == at_the_edge
        assert any(node not in graph.slots for node in graph.nodes)
        spans = {
            (id(s.buffer), s.offset, s.offset + kind.alloc_size(t), s.buffer.nbytes)
            for t, s in graph.slots.items()
            if t.role in (Role.INPUT, Role.NODE)
        }
        assert all(not at % kind.alignment and end <= size for _, at, end, size in spans)
        for (one, _, end, _), (other, at, _, _) in itertools.pairwise(sorted(spans)):
            assert one != other or end <= at
    assert kind.alignment == 128
    model.logits(IDS[:1])
    logits, slot = graphs[-1].outputs[-1], graphs[-1].slots[graphs[-1].outputs[-1]]
    padding = slot.offset + logits.nbytes, kind.alloc_size(logits) - logits.nbytes
    slot.buffer.write(padding[0], np.zeros(padding[1], np.uint8))
    model.logits(IDS[:1])
    assert set(slot.buffer.read(*padding)) == {0xFF}


def test_float16_and_copies(found, toy):
    """Results are rounded once stored; what two devices share goes through the host."""
    x = np.full((2, 5), 2048, np.float32)
    one = np.ones((2, 5), np.float32)
    for name, last in (("toy", 2048), ("host", 2049)):
        plan = _plan(found, [found.open(found.find(name))], "add", 2)
        (got,) = plan.run({"x0": x, "x1": one})
        assert set(got.flat) == {last}


@pytest.mark.parametrize(
    ("memory", "ctx", "what"), [(150_000, 8, "weight"), (MEMORY, 2000, "context")]
)
def test_no_room(found, file, memory, ctx, what):
    """A typed error while loading; what was taken by then is given back."""
    given = {"ctx": ctx, "kv": "f16", "options": {"toy": {"memory": memory}}}
    given["parallel"] = ctx // 8
    with pytest.raises(OutOfMemoryError, match=what) as caught:
        umbel.load(file("llama", context_length=1 << 20), "toy", **given)
    assert _free(found, collect=False) == memory, caught  # who keeps the error keeps no more


def test_no_room_beside_another(found, load, file):
    """What is free is asked when it matters: what one model takes the next one has not."""
    load("llama")
    free = found.backends["toy"].status(found.find("toy"))["memory_free"]
    with pytest.raises(OutOfMemoryError, match="the context does not fit") as caught:
        umbel.load(file("llama", context_length=1 << 20), "toy", ctx=1000, parallel=65)
    assert caught.value.expected == f"at most {free} bytes"
    assert caught.value.got < MEMORY


def test_a_strict_load_that_fails(found, toy, file):
    """It gives everything back, too."""
    with pytest.raises(DeviceError, match="converted") as caught:
        umbel.load(file("llama"), "toy", ctx=64, strict=True)
    assert _free(found, collect=False) == MEMORY, caught


# work


def test_asynchronous(found, meddle, graphs):
    """`graph_compute` comes back at once; a read waits for what was asked before it."""
    gate, done = threading.Event(), []
    meddle("neg", lambda: gate.wait(10))
    toy = found.open(found.find("toy"))
    plan = _plan(found, [toy], "neg")
    ((_, slot),) = plan.inputs
    slot.buffer.write(slot.offset, np.ones((2, 5), np.float16))
    toy.hooks.graph_compute(toy.device, plan.steps[0].graph)
    ((node, out),) = plan.outputs

    def read():
        done.append(out.buffer.read(out.offset, node.nbytes).view(np.float16))

    reader = threading.Thread(target=read)
    reader.start()
    reader.join(0.05)
    assert not done
    gate.set()
    reader.join()
    assert set(done[0]) == {-1}
    toy.hooks.sync(toy.device)


def test_errors_come_late(found, meddle):
    """With `sync`, once, and they name the split; nothing is computed from what failed."""
    calls = []
    meddle("neg", lambda: calls.append(1) or 1 // 0)
    toy = found.open(found.find("toy"))
    graph = _plan(found, [toy], "neg").steps[0].graph
    for _ in range(2):
        toy.hooks.graph_compute(toy.device, graph)
    with pytest.raises(DeviceError, match="the toy failed") as caught:
        toy.hooks.sync(toy.device)
    assert "by zero" in str(caught.value)
    assert len(calls) == 1
    toy.hooks.sync(toy.device)


@pytest.mark.parametrize(
    ("check", "named"), [(False, r"to output \(mul_mat\) on toy"), (True, r"^swiglu .* on toy")]
)
def test_a_failing_step(load, meddle, check, named):
    """It names its split, with `check` its node; the session is as before, the next step
    right."""
    faults = []
    meddle("swiglu", lambda: int(faults.pop()) if faults else None)
    model = load("llama", check=check)
    with model.open() as session:
        session.feed(IDS[:6])
        faults.append("no number")
        with pytest.raises(DeviceError, match=named):
            session.feed(IDS[6:9])
        assert session.tokens == IDS[:6]
        again = session.feed(IDS[6:9])
    with model.open() as session:
        session.feed(IDS[:6])
        np.testing.assert_array_equal(again, session.feed(IDS[6:9]))


def test_cancel_in_the_middle(found, load, meddle):
    """From another thread, between two operations of one split; the session goes on."""
    running, gate, calls = threading.Event(), threading.Event(), []
    found.load()
    toy = found.backends["toy"]
    cancel, cancelled = toy.cancel, threading.Event()
    toy.cancel = lambda device: (cancel(device), cancelled.set())

    def first():
        calls.append(1)
        running.set()
        assert gate.wait(30)

    meddle("swiglu", first)
    model = load("llama")
    session = model.open()
    generation = session.generate(IDS[:9], max_tokens=4, temperature=0)
    assert running.wait(30)
    closing = threading.Thread(target=generation.close)
    closing.start()
    assert cancelled.wait(30)
    gate.set()
    closing.join()
    assert generation.finish_reason == "cancelled"
    assert len(calls) == 1  # of the two layers
    assert session.tokens == []
    _close(load("llama", "host").logits(IDS[:9])[-1:], session.feed(IDS[:9])[None])
    session.close()


def test_forgotten(found, load):
    """A closed model leaves no program and no memory taken."""
    model = load("llama")
    model.logits(IDS)
    programs = found.backends["toy"].status(found.find("toy"))["programs"]
    assert programs == len(model.runner._plans) > 0
    model.close()
    assert _free(found) == MEMORY


# steps


@pytest.mark.parametrize("arch", ["llama", "mamba", "lfm2"])
def test_buckets(load, arch):
    """Steps have sizes that the toy takes; long prompts are cut; padding changes nothing."""
    model, host, ids = load(arch, parallel=6), load(arch, "host"), [*IDS, *IDS]
    rows = host.logits(ids)
    for n in (1, 3, 17, 63, 126):
        _close(rows[:n], model.logits(ids[:n]))
    runner, sequences = model.runner, [Sequence() for _ in range(5)]

    def decode():  # five sequences, padded to sixteen
        for i, sequence in enumerate(sequences):
            runner.forward(sequence, ids[i : i + 9])
        return runner.decode(sequences, ids[9:14])

    alone = [host.logits(ids[i : i + 10])[-1] for i in range(5)]
    _close(np.stack(alone), model.engine.call(decode))
    assert {s.n for s in runner._plans} <= {1, 4, 16, 64}
    assert {s.kv_length for s in runner._plans} <= {64, 256}
    assert max(s.sequences for s in runner._plans) == 16


def test_padding(load):
    """Not a bit of a result depends on it: 11 and 13 tokens are both padded to 16."""
    model = load("llama")
    np.testing.assert_array_equal(model.logits(IDS[:13])[:11], model.logits(IDS[:11]))


def test_the_largest_bucket(found, file):
    """It bounds the context that nobody asked for; a larger one is refused at load, with both
    numbers."""
    long = file("llama", context_length=1 << 13)
    with umbel.load(long, "toy") as model:
        assert model.ctx == 4096
    with umbel.load(file("bert"), "toy") as model:
        assert model.ctx == 64
        assert model.hidden(IDS[:60]).shape == (60, 64)
    for path, ctx, most in ((long, 4097, 4096), (file("bert"), 65, 64)):
        with pytest.raises(DeviceError, match="cannot take so many") as caught:
            umbel.load(path, "toy", ctx=ctx)
        assert caught.value.expected == f"at most {most}"
        assert caught.value.do == "lower ctx"


def test_rows_written_after_the_step(load):
    """What cannot scatter has its rows written by the plan, and reads them in the next step."""
    model = load("llama")
    plan = model.runner.plan(model.runner.usual[0])
    assert [s.target.name for s in plan.steps] == ["host:0", "toy:0"]  # angles, and all else
    assert len(plan.row_writes) == 4  # keys and values of two layers
    reasons = {p.reason for p in plan.placement.nodes if p.origin == "attention.0"}
    assert any("the plan writes its rows: toy:0: it has no kernel" in r for r in reasons)
    with model.open() as session:
        rows = [session.feed([i]) for i in IDS[:9]]
    _close(load("llama", "host").logits(IDS[:9]), np.stack(rows))


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


# whole models


@pytest.mark.parametrize("kv", ["auto", "f32"])
@pytest.mark.parametrize("arch", sorted(KEYS))
def test_whole_models(load, arch, kv):
    """The host's results, with keys and values on the toy and on the host."""
    answers = []
    for device in ("host", "toy"):
        model = load(arch, device, kv=kv, ctx=64)
        answers.append(model.hidden(IDS) if arch == "bert" else model.logits(IDS[:40]))
    _close(*answers)


def test_calls_that_hold_the_lock(found, load, monkeypatch, tmp_path):
    """Of all that works on the device never two things at once, while models are loaded,
    compute, save and close on threads of their own."""
    found.load()
    toy, busy, strays, threads = found.backends["toy"], threading.RLock(), [], set()

    def alone(function):
        def called(*args):
            threads.add(threading.get_ident())
            if not busy.acquire(blocking=False):
                strays.append(function.__name__)
                return function(*args)
            try:
                time.sleep(0.0005)  # for others to come
                return function(*args)
            finally:
                busy.release()

        return called

    for hook in ("graph_compute", "sync", "forget", "close"):
        monkeypatch.setattr(toy, hook, alone(getattr(toy, hook)))
    for kind, methods in ((Memory, ("allocate", "store")), (Piece, ("read", "write"))):
        for method in methods:
            monkeypatch.setattr(kind, method, alone(getattr(kind, method)))

    def work(arch):
        model = load(arch)
        with model.open() as session:
            for i in IDS[:6]:
                session.feed([i])
            session.save(tmp_path / arch)
        model.close()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, ["llama", "mamba", "gpt2"]))
    assert strays == []
    assert len(threads) > 3


def test_two_models_and_two_threads(load):
    """They share one device, and disturb each other in nothing."""
    models = [load("llama"), load("mamba")]
    work = [(model, IDS[i : i + 20]) for i in range(4) for model in models]
    alone = [model.logits(ids) for model, ids in work]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda pair: pair[0].logits(pair[1]), work * 3))
    for one, other in zip(alone * 3, together, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("arch", ["llama", "mamba2"])
def test_sessions(load, tmp_path, arch):
    """Forked, saved, restored and rewound: the state comes through the host and back."""
    model = load(arch)
    with model.open() as session:
        session.feed(IDS[:7])
        with session.fork() as other:
            one, two = session.feed(IDS[7:9]), other.feed(IDS[20:22])
        session.save(tmp_path / "saved")
        with model.restore(tmp_path / "saved") as restored:
            np.testing.assert_array_equal(session.feed(IDS[9:12]), restored.feed(IDS[9:12]))
        session.rewind(7)
        np.testing.assert_array_equal(one, session.feed(IDS[7:9]))
    host = load(arch, "host")
    expected = [host.logits(IDS[:7] + ids)[-1] for ids in (IDS[7:9], IDS[20:22])]
    _close(np.stack(expected), np.stack([one, two]))
