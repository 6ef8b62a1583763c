"""The plugin of pytest: it costs nothing until it is used, and tells what was found."""

import re

from umbel_kit.cases import CASES

PROBE = """
import sys

def test_nothing_is_imported(request):
    assert "umbel_kit.pytest_plugin" in sys.modules
    assert request.config.option.umbel_device == "host"
    heavy = {name for name in sys.modules if name.split(".")[0] in ("umbel", "numpy", "gguf")}
    assert heavy == set()
"""
# The host, wrong in several ways.
PLUGIN = """
import numpy as np
from umbel import host
from umbel.errors import DeviceError
from umbel.hookspecs import Device, hookimpl

UMBEL_API = 1
late = []


@hookimpl
def devices():
    return [Device("odd:0", "the host, wrong in several ways", priority=1, simulated=True)]


@hookimpl
def op_supported(device, node):
    refused = {"sqr": "it knows no squares", "sqrt": "it knows no roots", "neg": 7}
    return refused.get(node.op.name)


@hookimpl
def graph_compute(device, graph):
    host.graph_compute(device, graph)
    for node in graph.nodes:
        slot = graph.slots[node.storage]
        memory, end = slot.buffer.map("rw"), slot.offset + node.nbytes
        match node.op.name:
            case "tanh":
                memory[slot.offset : end] = 0xFF
            case "exp":
                memory[slot.offset - 1] = 0
            case "set_rows":
                memory[end:] = 0
            case "relu":
                late.append(node)


@hookimpl
def sync(device):
    if late:
        late.clear()
        raise DeviceError("the queue broke")


open, close, buffer_type, forget = host.open, host.close, host.buffer_type, host.forget
"""
# An operation that is not what it is said to be made of, and a case of it.
HALF_RIGHT = """
from umbel.graph import Operation, Spec
from umbel.hookspecs import hookimpl
from umbel_kit.cases import Arg, Case

UMBEL_API = 1
CASES = [Case("twice", (Arg((3, 5)),))]


@hookimpl
def ops():
    def infer(x):
        return Spec(x.shape, x.dtype)

    def pieces(build, node, dtype):
        return build.scale(node.inputs[0], s=3.0, b=0.0)

    return [Operation("twice", infer, lambda x: 2 * x, pieces)]
"""
# The host without two operations, one of which has its pieces; or without any.
PARTIAL = """
from umbel import host
from umbel.hookspecs import Device, DeviceInfo, hookimpl

UMBEL_API = 1
lacking = ()


@hookimpl
def devices():
    return [Device(f"{BACKEND}:0", "the host, in part", priority=1, simulated=True)]


@hookimpl
def op_supported(device, node):
    if not lacking or node.op.name in lacking:
        return f"no {node.op.name}"


open, close, buffer_type, forget = host.open, host.close, host.buffer_type, host.forget
graph_compute = host.graph_compute
"""
# The host, whose products are sums, and which fails in whole models.
FAILING = """
import numpy as np
from umbel import host
from umbel.errors import DeviceError
from umbel.hookspecs import Device, hookimpl

UMBEL_API = 1


@hookimpl
def devices():
    return [Device("failing:0", "the host, which fails", priority=1, simulated=True)]


@hookimpl
def op_supported(device, node):
    return None


@hookimpl
def graph_compute(device, graph):
    host.graph_compute(device, graph)
    if len(graph.nodes) > 20:
        raise DeviceError("the queue broke")
    for node in graph.nodes:
        if node.op.name == "mul":
            slot = graph.slots[node.storage]
            slot.buffer.map("rw")[slot.offset :][: node.nbytes].view(np.float32)[...] += 1


open, close, buffer_type, forget = host.open, host.close, host.buffer_type, host.forget
"""
CHANGED = ("sqr", "sqrt", "neg", "tanh", "exp", "set_rows", "relu")


def test_nothing_is_imported(run, tmp_path):
    """In the runs of others pytest loads the module, and neither Umbel nor NumPy."""
    (tmp_path / "test_probe.py").write_text(PROBE)
    ran = run("-m", "pytest", "-p", "no:cacheprovider", "test_probe.py")
    assert ran.returncode == 0, ran.stdout
    assert "not supported" not in ran.stdout
    assert "time per operation" not in ran.stdout


def test_module_alone(run):
    """Nor does importing it."""
    code = "import sys, umbel_kit.pytest_plugin; print({'umbel', 'numpy'} & {*sys.modules})"
    ran = run("-c", code)
    assert ran.stdout.strip() == "set()", ran.stderr


def test_options_are_listed(run):
    """`pytest --help` tells them, without a device."""
    ran = run("-m", "pytest", "--help")
    for option in ("--umbel-device", "--umbel-option", "--umbel-cases", "--umbel-perf"):
        assert option in ran.stdout


def test_every_outcome(suite, install):
    """Right, wrong, and not supported: counted, with the reason; the others fail."""
    folder = install("odd", PLUGIN)
    chosen = f"test_operation and ({' or '.join(CHANGED)} or sigmoid)"
    options = ("--umbel-device", "odd", "-k", chosen, "-rA")
    ran = suite(*options, path=folder)
    assert ran.returncode == 1
    verdicts = re.findall(r"^(PASSED|FAILED|ERROR) .*\[(\w+) (.*?)\]", ran.stdout, re.MULTILINE)
    found = {
        name: {
            v for v, op, args in verdicts if op == name and not re.search(r"\b0\b|x0|0x", args)
        }
        for name in (*CHANGED, "sigmoid")
    }
    bad = {name for name, seen in found.items() if seen == {"FAILED"}}
    assert bad == {"neg", "tanh", "exp", "set_rows", "relu"}
    assert found["sigmoid"] == {"PASSED"}
    assert found["sqr"] == found["sqrt"] == set()
    _, _, told = ran.stdout.partition("not supported: tests, reason")
    counted = dict(re.findall(r"^ +(\d+) (it knows no \w+)$", told, re.MULTILINE))
    counted = {reason: int(n) for n, reason in counted.items()}
    assert counted == {
        "it knows no squares": sum(c.op == "sqr" for c in CASES),
        "it knows no roots": sum(c.op == "sqrt" for c in CASES),
    }
    for reason in ("the queue broke", "expected str | None", "were overwritten"):
        assert reason in ran.stdout


def test_missing_device(suite):
    """A device that is not there is an error that names it, never the host."""
    ran = suite("--umbel-device", "nowhere:3", "-k", "test_operation and sqrt")
    assert ran.returncode == 1
    assert "nowhere:3" in ran.stdout
    assert "passed" not in ran.stdout


def test_the_decompositions_of_others(install, suite):
    """An operation of a plugin is compared with its pieces too, not only with its reference."""
    folder = install("half", HALF_RIGHT)
    ran = suite("--umbel-cases", "half_plugin", "-k", "twice", "-rA", path=folder)
    verdicts = re.findall(r"^(PASSED|FAILED) .*::(\w+)\[twice 3x5\]", ran.stdout, re.MULTILINE)
    assert dict(map(reversed, verdicts)) == {
        "test_operation": "PASSED",
        "test_composite": "FAILED",
    }


def test_a_failure_is_one_line(suite, install):
    """The case, the error and its limit, the largest difference and where; in the summary too,
    and nothing of the kit's own code."""
    ran = suite(
        *("--umbel-device", "failing", "-k", "test_operation and mul and not mul_mat"),
        path=install("failing", FAILING),
    )
    told = re.findall(
        r"^NMSE [\d.e+-]+, at most 1e-07 is allowed; the largest difference is "
        r"[\d.-]+ at \[[\d, ]+\], expected [\d.-]+ \(mul 3x5.*\)$",
        ran.stdout,
        re.MULTILINE,
    )
    assert told
    assert len(re.findall(r"^FAILED .*\[mul 3x5.* - (Failed: )?NMSE ", ran.stdout, re.M)) > 0
    assert "def test_operation" not in ran.stdout
    assert "assert" not in ran.stdout


def test_a_failing_model(suite, install):
    """It is told how to find the node, in words that are true of pytest."""
    ran = suite(
        *("--umbel-device", "failing", "-k", "test_decode and llama"),
        path=install("failing", FAILING),
    )
    assert "the queue broke" in ran.stdout
    assert "--check" not in ran.stdout.partition("short test summary")[0].rpartition("E  ")[2]
    found = re.search(r"do: `(umbel compare \S*llama-f32.gguf --device failing)`", ran.stdout)
    assert found


def test_what_runs_in_pieces(suite, install):
    """It is told apart from what does not run at all, with the piece that is missing."""
    source = PARTIAL.replace("{BACKEND}", "partial").replace(
        "lacking = ()", 'lacking = ("silu", "softplus", "log", "exp")'
    )
    ran = suite(
        *(
            "--umbel-device",
            "partial",
            "-k",
            "test_operation and (silu or softplus or sigmoid)",
        ),
        path=install("partial", source),
    )
    assert ran.returncode == 0, ran.stdout
    _, _, told = ran.stdout.partition("in another form: tests, form, reason")
    formed, _, refused = told.partition("not supported: tests, reason")
    assert re.search(r"^ +\d+ decomposed: no silu$", formed, re.MULTILINE)
    assert "softplus" not in formed
    wanted = r"^ +\d+ no softplus; in pieces: it needs exp: no exp$"
    assert re.search(wanted, refused, re.MULTILINE)
    assert "silu" not in refused
    assert "cases were refused" not in refused


def test_all_is_refused(suite, install):
    """The summary says what such a device should look at."""
    source = PARTIAL.replace("{BACKEND}", "partial")
    ran = suite(
        *("--umbel-device", "partial", "-k", "test_operation and (add or mul)"),
        path=install("partial", source),
    )
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"^(\d+) of \1 cases were refused: .* \(f32\), weights", ran.stdout, re.M)


def test_operations_come_first(suite):
    """What fails there explains what fails afterwards."""
    ran = suite("--collect-only")
    files = re.findall(r"^\S*(test_\w+)\.py::", ran.stdout, re.MULTILINE)
    assert list(dict.fromkeys(files)) == [
        "test_ops",
        "test_memory",
        "test_composites",
        "test_models",
    ]
