"""`umbel compare`: node by node, a device against the references; cases and their replay."""

import json
import os
import re
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from umbel import host, plugins
from umbel.cli import main
from umbel.errors import DeviceError
from umbel.gguf.types import F16, F32, Q8_0
from umbel.graph import Role
from umbel.hookspecs import Device, hookimpl
from umbel.models import architecture
from umbel.ops import OPS
from umbel_kit import comparison, recorded
from umbel_kit.device import as_stored, reference
from umbel_kit.models import write_model
from umbel_kit.recorded import Leaf, Recorded

KIT = Path(__file__).parents[1]


class Odd:
    """The host's hooks under another name; `spoil(node, slots)` follows every node."""

    UMBEL_API = 1

    def __init__(self):
        self.spoil = lambda node, slots: None
        self.refused = {}
        self.cancelled = threading.Event()

    @hookimpl
    def devices(self):
        text = "wrong on purpose"
        return [Device(f"odd:{i}", text, priority=-1, reads_host=True) for i in range(2)]

    @hookimpl
    def open(self, device, options, kernels):
        return host.open(device, options, kernels)

    @hookimpl
    def buffer_type(self, device):
        return host.buffer_type(device)

    @hookimpl
    def op_supported(self, device, node):
        return self.refused.get(node.op.name)

    @hookimpl
    def graph_compute(self, device, graph):
        host.graph_compute(device, graph)
        for node in graph.nodes:
            self.spoil(node, graph.slots)

    @hookimpl
    def forget(self, device, uid):
        host.forget(device, uid)

    @hookimpl
    def cancel(self, device):
        self.cancelled.set()


def values(t, slots):
    """The float32 values of a tensor, to be spoilt."""
    slot = slots[t.storage]
    return slot.buffer.map("rw")[slot.offset :][: t.storage.nbytes].view(np.float32)


def wrong(op, factor=1.01, layer=""):
    """What makes one operation wrong, and nothing else."""

    def spoil(node, slots):
        if node.op.name == op and layer in node.name:
            values(node, slots)[:] *= factor

    return spoil


@pytest.fixture
def odd():
    return Odd()


@pytest.fixture
def found(monkeypatch, odd):
    """The plugins of a process that has this command, the wrong device and the toy."""
    monkeypatch.syspath_prepend(KIT / "examples/toy-accelerator/src")
    import umbel_toy

    made = plugins.Plugins(only="")
    made.load()
    for name, plugin in (("compare", comparison), ("odd", odd), ("toy", umbel_toy)):
        made.add(name, plugin)
    monkeypatch.setattr(plugins, "_process", made)
    yield made
    made.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """model(arch, dtype): the path of a tiny one."""
    folder = tmp_path_factory.mktemp("compare")

    def written(arch="llama", dtype="f32"):
        path = folder / f"{arch}-{dtype}.gguf"
        return (
            path if path.exists() else write_model(path, architecture(arch), OPS, dtype=dtype)
        )

    return written


@pytest.fixture
def umbel(found, capsys):
    """umbel(*words): exit code, stdout and stderr of `umbel compare`."""

    def run(*words):
        code = main(["compare", *map(str, words)])
        said = capsys.readouterr()
        return SimpleNamespace(code=code, out=said.out, err=said.err)

    return run


# where all is right


@pytest.mark.parametrize("device", ["host", "toy"])
@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3moe", "mamba2", "lfm2"])
def test_all_right(umbel, model, arch, device):
    """Attention, experts and recurrent states; padding, casts and rows that are written later;
    the worst nodes come first."""
    done = umbel(model(arch), "--device", device, "-p", 6)
    assert (done.code, done.err.count("error")) == (0, 0), done.out
    assert re.search(r"all of \d+ nodes \(\d tokens after 0, .*1 token after 6\)", done.out)
    shares = [float(a) / float(b) for a, b in re.findall(r"^(\S+e\S+) +(\S+) ", done.out, re.M)]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)


def test_an_encoder(umbel, model):
    """It has one step."""
    done = umbel(model("bert"), "--device", "toy", "-p", 5)
    assert done.code == 0
    assert "(5 tokens after 0)" in done.out


def test_composites_are_compared_as_they_are_claimed(umbel, model, odd):
    """Whole where the device takes them whole, else the pieces that it takes."""
    odd.spoil = wrong("kv_attention")
    done = umbel(model(), "--device", "odd", "-p", 3)
    assert "is node 7 of 3 tokens after 0:\n  attention.0 (kv_attention) on odd:0" in done.out
    odd.refused, odd.spoil = {"swiglu": "no such kernel"}, wrong("silu")
    done = umbel(model(), "--device", "odd", "-p", 3)
    assert "swiglu (silu) on odd:0\n  decomposed: odd:0: no such kernel\n" in done.out


def test_rows_that_are_cut_over_devices(umbel, model, odd, monkeypatch):
    """Each multiplies its own share of a weight."""
    monkeypatch.setattr("umbel.plan.emit.LEAST", 1)
    words = model("llama", "q8_0"), "--device", "odd:0,odd:1", "-p", 3
    assert umbel(*words).code == 0
    odd.spoil = lambda node, slots: (
        "[32:64]" in node.inputs[0].name and wrong("mul_mat", 2)(node, slots)
    )
    done = umbel(*words)
    assert "blk.0.attn_q (mul_mat) on odd:1\n  rows cut over odd:0, odd:1" in done.out
    assert re.search(r"input +blk\.0\.attn_q\.weight\[32:64\] +\[32, 64\] +q8_0", done.out)


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0"])
def test_quantised(umbel, model, dtype):
    """Quantised weights and caches, which the toy has converted."""
    words = model("llama", dtype), "-p", 4, "--kv", "f16"
    assert umbel(*words, "--device", "toy").code == 0
    assert umbel(*words, "--device", "odd").code == 0


# where a node is wrong


def test_the_wrong_operation_is_named_kept_and_run_again(umbel, model, odd, tmp_path):
    """Exactly that node, and replays that differ where the device is wrong only."""
    odd.spoil, case = wrong("swiglu"), tmp_path / "case.npz"
    done = umbel(model(), "--device", "odd", "-p", 5, "--save", case)
    assert done.code == 1
    assert " of 5 tokens after 0:\n  swiglu (swiglu) on odd:0\n  runs there\n" in done.out
    assert re.search(r"result +\[5, 96\] +f32", done.out)
    assert re.search(r"input +blk\.0\.ffn_gate +\[5, 96\] +f32 +input", done.out)
    assert "NMSE 0.0001, limit 1e-07" in done.out
    again = umbel("--replay", case, "--device", "odd")
    assert again.code == 1
    assert "NMSE 0.0001, limit 1e-07" in again.out
    assert "kept in the step of 5 tokens after 0, on odd:0 (runs there)" in again.out
    for device in ("host", "toy"):
        right = umbel("--replay", case, "--device", device)
        assert (right.code, right.out.splitlines()[0]) == (0, "the node is right:"), right.out
    odd.spoil = lambda node, slots: None
    assert umbel("--replay", case, "--device", "odd").code == 0


def test_only_a_late_node(umbel, model, odd, tmp_path):
    """What comes before it is right, although the same operation runs there."""
    odd.spoil = wrong("mul_mat", layer="blk.1.ffn_down")
    done = umbel(model("llama", "q8_0"), "--device", "odd", "--save", tmp_path / "case.npz")
    assert done.code == 0, "within what products of quantised weights may differ by"
    odd.spoil = wrong("mul_mat", 1.1, "blk.1.ffn_down")
    done = umbel(model("llama", "q8_0"), "--device", "odd", "--save", tmp_path / "case.npz")
    assert done.code == 1
    assert "blk.1.ffn_down (mul_mat)" in done.out
    assert re.search(r"input +blk\.1\.ffn_down\.weight +\[64, 96\] +q8_0 +weight", done.out)
    assert umbel("--replay", tmp_path / "case.npz", "--device", "toy").code == 0


def test_a_state_that_is_written_wrongly(umbel, model, odd, tmp_path):
    """The result is right, the cache is not; scratch may hold anything."""

    def spoil(node, slots):
        if node.op.name == "kv_attention":
            cache = values(node.inputs[4], slots).reshape(node.inputs[4].shape)
            cache[0] = 99
            if scratch_only:
                return
            cache[2] += 1

    odd.spoil, scratch_only = spoil, True
    assert umbel(model(), "--device", "odd", "-p", 3).code == 0
    scratch_only, case = False, tmp_path / "case.npz"
    done = umbel(model(), "--device", "odd", "-p", 3, "--save", case)
    assert done.code == 1
    assert "attention.0 (kv_attention)" in done.out
    assert "v_cache.0: NMSE" in done.out
    assert umbel("--replay", case, "--device", "odd").code == 1
    assert umbel("--replay", case, "--device", "host").code == 0
    refused = umbel("--replay", case, "--device", "toy")
    assert refused.code == 2
    assert "toy:0 does not run this node" in refused.err
    assert "got: it has no kernel for kv_attention" in refused.err


def test_other_faults_of_a_node(umbel, model, odd, tmp_path):
    """An error of the device, values that are not finite, somebody else's bytes."""

    def fails(node, slots):
        if node.op.name == "rope":
            msg = "the queue is stuck"
            raise DeviceError(msg)

    def overwrites(node, slots):
        if node.op.name == "rope":
            slots[node].buffer.map("rw")[slots[node].offset + node.nbytes] = 1

    told = {"the queue is stuck": fails, "nan at [0, 0, 0]": wrong("rope", np.nan)}
    told["were overwritten, which are nobody's"] = overwrites
    for text, odd.spoil in told.items():
        done = umbel(model(), "--device", "odd", "-p", 2, "--save", tmp_path / "case.npz")
        assert done.code == 1
        assert "rope (rope) on odd:0" in done.out
        assert text in done.out
        assert umbel("--replay", tmp_path / "case.npz", "--device", "host").code == 0


def test_a_limit_of_ones_own(umbel, model, odd):
    """It stands in the place of those of the operations."""
    odd.spoil = wrong("swiglu")
    assert umbel(model(), "--device", "odd", "-p", 5, "--limit", 1e-3).code == 0
    odd.spoil = wrong("swiglu", 1 + 1e-5)
    assert umbel(model(), "--device", "odd", "-p", 5).code == 0
    done = umbel(model(), "--device", "odd", "-p", 5, "--limit", 1e-11)
    assert done.code == 1
    assert "swiglu (swiglu)" in done.out
    assert "NMSE 1e-10, limit 1e-11" in done.out


def test_the_tokens_are_those_of_the_seed(umbel, model, odd):
    """The same seed, the same figures; another one, others."""

    def spoil(node, slots):
        if node.op.name == "swiglu":
            values(node, slots)[:] += 1

    odd.spoil = spoil
    said = [umbel(model(), "--device", "odd", "--seed", s).out for s in (0, 0, 1)]
    assert said[0] == said[1] != said[2]


# errors that pile up


def test_chained(umbel, model, odd):
    """Small errors stay in bounds one by one; together they are seen to grow."""
    assert umbel(model(), "--device", "host", "--chained", "-p", 5).code == 0
    odd.spoil = wrong("add", 1.02)
    done = umbel(model(), "--device", "odd", "--chained", "-p", 5)
    assert done.code == 1
    errors = [float(e) for e in re.findall(r"^(\S+e[-+]\d\d) ", done.out, re.M)]
    assert errors == sorted(errors)
    assert errors[-1] > 2e-3 > 4e-4 > errors[0]
    assert "case" not in done.out.lower()


@pytest.mark.parametrize("arch", ["llama", "mamba2", "qwen3moe"])
def test_chained_on_a_narrow_device(umbel, model, arch):
    """Rounding in every node: more than in any of them alone, less than what is wrong."""
    done = umbel(model(arch), "--device", "toy", "--chained", "-p", 5)
    assert done.code == 0, done.out
    errors = [float(e) for e in re.findall(r"^(\S+e[-+]\d\d) ", done.out, re.M)]
    assert 1e-3 > errors[-1] > 4 * errors[0] > 1e-8


# bad input


def test_bad_input(umbel, model, tmp_path):
    """One plain line, exit code 2."""
    case = tmp_path / "case.npz"
    for words, text in (
        ((model(), "--device", "npu"), "there is no device 'npu'"),
        ((), "MODEL is missing"),
        ((model(), "-p", 0), "a number is out of range"),
        ((model(), "--limit", "nan"), "a number is out of range"),
        ((model(), "--chained", "--save", case), "there is no case to be kept"),
        ((model(), "--replay", case), "a case is run by itself"),
        (("--replay", case), "there is no such file"),
        ((model(), "--save", model()), "is another kind of file, and stays as it is"),
        ((tmp_path / "no.gguf",), "no.gguf"),
    ):
        done = umbel(*words)
        assert (done.code, done.out) == (2, ""), words
        assert done.err.startswith("umbel: error: ")
        assert text in done.err
        assert "Traceback" not in done.err


def changed(path, **header):
    """A copy of a case whose header says something else."""
    with np.load(path) as archive:
        arrays = dict(archive)
    told = json.loads(arrays["header"].tobytes()) | header
    arrays["header"] = np.frombuffer(json.dumps(told).encode(), np.uint8)
    np.savez(path.with_name("changed.npz"), **arrays)
    return path.with_name("changed.npz")


def test_files_that_are_no_case(umbel, model, odd, tmp_path):
    """Each is refused by what is wrong with it."""
    odd.spoil, case = wrong("swiglu"), tmp_path / "case.npz"
    assert umbel(model(), "--device", "odd", "--save", case).code == 1
    other, cut = tmp_path / "other.npz", tmp_path / "cut.npz"
    np.savez(other, header=np.frombuffer(b'{"format": "umbel sequence 1"}', np.uint8))
    cut.write_bytes(case.read_bytes()[:-100])
    for path in (other, cut, model()):
        done = umbel("--replay", path)
        assert (done.code, "this is no case" in done.err) == (2, True), path
    for header, text in (
        ({"format": "umbel case 2"}, "of another version\n"),
        ({"op": "fly"}, "there is no operation 'fly'"),
        ({"inputs": [[0, []], [7, []]]}, "the case is damaged"),
        ({"inputs": [[0, []], [1, [["reshape", {"shape": [3]}]]]]}, "the case is damaged"),
        ({"leaves": []}, "the case is damaged"),
        ({"dtype": "f7"}, "the case is damaged"),
        ({"attrs": {"colour": 1}}, "the case is damaged"),
    ):
        done = umbel("--replay", changed(case, **header))
        assert (done.code, text in done.err) == (2, True), (header, done.err)


def test_a_case_that_cannot_be_written(umbel, model, odd, tmp_path):
    """The fault is told all the same."""
    odd.spoil = wrong("swiglu")
    done = umbel(model(), "--device", "odd", "--save", tmp_path / "no/case.npz")
    assert done.code == 2
    assert "swiglu (swiglu) on odd:0" in done.out
    assert "the file cannot be written" in done.err


def test_nothing_is_kept_where_nothing_differs(umbel, model, tmp_path):
    """A note says so."""
    done = umbel(model(), "--device", "host", "--save", tmp_path / "case.npz")
    assert done.code == 0
    assert "case.npz is not written, as nothing differs" in done.err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c(umbel, model, odd):
    """The device is told to stop, and waited for."""

    def spoil(node, slots):
        if node.op.name == "swiglu":
            os.kill(os.getpid(), signal.SIGINT)
            assert odd.cancelled.wait(20)

    odd.spoil = spoil
    done = umbel(model(), "--device", "odd")
    assert (done.code, done.out, done.err) == (130, "", "")
    assert odd.cancelled.is_set()


# cases


def test_a_case_holds_everything(tmp_path):
    """Views, a shared leaf, weights and states as bytes, constants, tuples."""
    rng = np.random.default_rng(5)
    floats = rng.standard_normal((4, 64)).astype(np.float16)
    blocks = as_stored(rng.standard_normal((8, 64)), Q8_0)
    rows = np.array([3, 1], np.int32)
    leaves = [
        Leaf("x", Role.INPUT, F16, (4, 64), floats),
        Leaf("cache", Role.STATE, Q8_0, (8, 64), blocks),
        Leaf("rows", Role.CONST, recorded.BY_NAME["i32"], (2,), rows),
    ]
    half = [("view", {"axis": 0, "start": 1, "stop": 3})]
    inputs = [(1, []), (0, half), (2, [])]
    case = Recorded("set_rows", "write", {}, Q8_0, leaves, inputs, {"device": "here"})
    recorded.save(tmp_path / "case.npz", case)
    read = recorded.load(tmp_path / "case.npz", OPS)
    assert (read.op, read.name, read.how, read.dtype, read.story) == (
        *("set_rows", "write", {}, Q8_0),
        {"device": "here"},
    )
    for one, other in zip(leaves, read.leaves, strict=True):
        assert (one.name, one.role, one.dtype, one.shape) == (
            *(other.name, other.role, other.dtype),
            other.shape,
        )
        np.testing.assert_array_equal(one.array, other.array)
    call = read.ready(None, OPS)
    assert [t.dtype for t in call.node.inputs] == [Q8_0, F32, recorded.BY_NAME["i32"]]
    _, states = reference(call)
    (after,) = states.values()
    np.testing.assert_array_equal(after[[3, 1]], as_stored(floats[1:3], Q8_0))
    np.testing.assert_array_equal(after[[0, 2, 4, 5, 6, 7]], blocks[[0, 2, 4, 5, 6, 7]])


def test_the_kit_brings_the_command():
    """The entry point that makes `umbel compare` is this module."""
    entry = '[project.entry-points.umbel]\ncompare = "umbel_kit.comparison"\n'
    assert entry in (KIT / "pyproject.toml").read_text("utf-8")
    assert comparison.__name__ == "umbel_kit.comparison"
