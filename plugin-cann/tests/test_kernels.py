"""Kernels that other distributions bring: asked first, refused by name, never in the way."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from umbel.errors import DeviceError, PluginError
from umbel.gguf.types import F16, F32
from umbel.graph import Builder, Operation, Role, Spec, Tensor
from umbel.hookspecs import Kernel, Slot
from umbel.ops import OPS
from umbel_cann.acl import LIBRARIES, Acl
from umbel_cann.acl.toolkit import Toolkit
from umbel_cann.brought import Brought
from umbel_cann.chips import chip
from umbel_cann.compile import lower, unsupported
from umbel_cann.kernels import Launches, NpuKernel, Numbers, Unsupported
from umbel_cann.lowering import Lowering

HERE = Path(__file__).parent
STORY = HERE.parents[1] / "core/tests/data/oracles/stories260K.gguf"
CHIPS = ("310B", "310P", "910B")
LARGE = chip("Ascend910B3")
X = Tensor((4, 8), F32, Role.INPUT, "x")
SILU = Builder(OPS).silu(X)


def silu(to: Launches, node: Tensor) -> None:
    x = to.view(node.inputs[0])
    sigmoid = to.temporary(x.shape, x.type)
    to.emit("Sigmoid", x, sigmoid)
    to.emit("Mul", x, sigmoid, to.view(node))


def kernel(lower_: Callable[[Launches, Tensor], None] = silu, op: str = "silu") -> Kernel:
    return Kernel(op, lambda node: None, NpuKernel(lower_))


def acl(root: Path = Path("/nowhere")) -> Acl:
    return Acl(Toolkit(root))


def brought(*kernels: Kernel) -> Brought:
    return Brought.new(kernels, acl())


def known(operator: str) -> str | None:
    return None if operator in acl().operators else f"the plugin does not know aclnn{operator}"


def calls(by: Brought, node: Tensor = SILU) -> list[tuple[str, str]]:
    """The operators that compute a node, and whose they are."""
    to = Lowering(LARGE, known)
    lower(to, node, brought=by)
    return [(launch.operator, launch.by) for launch in to.launches]  # type: ignore[attr-defined]


def test_it_comes_before_the_plugins_own() -> None:
    title = f"the kernel for silu of {__name__}"
    assert calls(Brought()) == [("Silu", "")]
    assert calls(brought(kernel())) == [("Sigmoid", title), ("Mul", title)]
    assert calls(brought(kernel()), Builder(OPS).relu(X)) == [("Relu", "")]
    empty = Builder(OPS).concat(Tensor((0, 8), F32, Role.INPUT, "e"), X, axis=0)
    assert unsupported(empty, LARGE, known, brought(kernel(op="concat"))) == (
        "it takes no empty tensors"
    )


def test_it_gets_values_as_they_are_meant() -> None:
    """Also what the plugin keeps divided, which only its own operations understand."""
    half = Builder(OPS).apply(OPS["silu"], Tensor((4, 8), F16, Role.NODE, "x"), stored_as=F16)

    def of(by: Brought) -> list[str]:
        slots = {t: Slot(_Place()) for t in (half, *half.inputs)}  # type: ignore[arg-type]
        to = Lowering(chip("Ascend310P3"), known, slots)
        to.divide(half.inputs[0], 6, half.inputs[0].nbytes)
        lower(to, half, brought=by)
        return [launch.operator for launch in to.launches]  # type: ignore[attr-defined]

    assert of(brought(kernel())) == ["Muls", "Sigmoid", "Mul"]


@attrs.frozen
class _Place:
    handle: int = 0
    nbytes = 1 << 30


def refusing(to: Launches, node: Tensor) -> None:
    silu(to, node)
    to.emit("NoSuch", to.view(node))


def test_refusals(caplog: pytest.LogCaptureFixture) -> None:
    """The next one is asked, in the end the plugin; a note says so, once."""
    no = Kernel("silu", lambda node: "not on a Monday", NpuKernel(silu))
    by = brought(no, kernel(refusing))
    with caplog.at_level(logging.WARNING, "umbel"):
        assert calls(by) == calls(by) == [("Silu", "")]
    assert [record.message for record in caplog.records] == [
        f"the kernel for silu of {__name__} does not take silu: not on a Monday"
    ]
    assert len(calls(brought(no, kernel()))) == 2
    why = unsupported(SILU, LARGE, lambda name: "lost" if name == "Silu" else known(name), by)
    title = f"the kernel for silu of {__name__}"
    unknown = f"{title}: the plugin does not know aclnnNoSuch"
    assert why == f"lost; {title}: not on a Monday; {unknown}"
    raising = brought(Kernel("silu", refusing_at_once, no.run))
    assert calls(raising) == [("Silu", "")]  # also where `supported` raises it


def refusing_at_once(node: Tensor) -> None:
    msg = "not today"
    raise Unsupported(msg)


def few(to: Launches, node: Tensor) -> None:
    to.emit("Silu", to.view(node))


def odd(to: Launches, node: Tensor) -> None:
    to.emit("Silu", Numbers((1,)), to.view(node))


def whole(to: Launches, node: Tensor) -> None:
    to.emit("Softmax", to.view(node), 1.0, to.view(node))


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (kernel(lambda to, node: [][1]), "IndexError: list index out of range"),  # type: ignore[arg-type,return-value]
        (kernel(lambda to, node: None), "ValueError: it launched nothing"),
        (kernel(few), "TypeError: aclnnSilu takes 2 arguments (TT), not 1"),
        (kernel(odd), "argument 1 of aclnnSilu is Numbers(values=(1,)), expected View or None"),
        (kernel(whole), "argument 2 of aclnnSoftmax is 1.0, expected int"),
        (Kernel("silu", lambda node: 1 / 0, NpuKernel(silu)), "ZeroDivisionError: division"),  # type: ignore[arg-type,return-value]
        (Kernel("silu", lambda node: True, NpuKernel(silu)), "`supported` gave True"),  # type: ignore[arg-type,return-value]
    ],
)
def test_what_is_wrong_is_an_error_with_a_name(bad: Kernel, told: str) -> None:
    with pytest.raises(DeviceError) as caught:
        unsupported(SILU, LARGE, known, brought(bad))
    assert f"the kernel for silu of {__name__} failed: " in caught.value.what
    assert told in caught.value.what
    assert caught.value.where == "silu"


def fickle(to: Lowering, node: Tensor) -> None:
    silu(to, node)
    if to.slots is not None:
        msg = "no more"
        raise Unsupported(msg)


def test_a_kernel_that_changes_its_mind() -> None:
    to = Lowering(LARGE, known, {t: Slot(_Place()) for t in (SILU, X)})  # type: ignore[arg-type]
    by = brought(kernel(fickle))  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="it takes a node no more that it took when asked"):
        lower(to, SILU, brought=by)


def test_what_is_no_kernel_is_refused() -> None:
    with pytest.raises(PluginError) as caught:
        brought(Kernel("silu", lambda node: None, silu))
    assert f"{__name__} brings a kernel for silu that is none for an NPU" in str(caught.value)
    assert "expected: umbel_cann.kernels.NpuKernel" in str(caught.value)
    for name, letters in (("aclnnAdd", "TT"), ("Add", "T?"), ("", "T")):
        with pytest.raises(ValueError, match="is no operator"):
            NpuKernel(silu, {name: letters})


def test_states_of_unknown_operations_are_not_written() -> None:
    """Their rows might have no memory yet."""
    op = Operation(
        "forget", lambda state: Spec(state.shape, F32), lambda state: state, writes=True
    )
    node = Builder(OPS).apply(op, Tensor((4, 8), F32, Role.STATE, "s"))
    why = unsupported(node, LARGE, known, brought(kernel(op="forget")))
    assert why is not None
    assert why.endswith("; it is not known which rows of its state it writes")


def test_operators_of_their_own(built: Callable[[str, int], Path], tmp_path: Path) -> None:
    """Looked for in their library, then in CANN; what is missing is the reason."""
    library, gone = str(built("libopapi_nn.so", 0)), str(tmp_path / "libcust_opapi.so")
    mine = acl(tmp_path)
    assert mine.missing("Third") == "the plugin does not know aclnnThird"
    mine.bring({"Third": "TT", "Mm": mine.operators["Mm"]}, gone)
    assert gone in str(mine.missing("Third"))
    assert "cannot open shared object file" in str(mine.missing("Third"))
    mine.bring({"Fourth": "T"}, library)
    assert mine.missing("Fourth") == f"aclnnFourth of {library}: it is not in there"
    mine.bring({"Fifth": "T"}, "libcust_opapi.so")
    assert "nor in LD_LIBRARY_PATH" in str(mine.missing("Fifth"))
    with pytest.raises(PluginError, match="aclnnThird is known with other arguments"):
        mine.bring({"Third": "TS"}, None)
    with pytest.raises(PluginError, match="aclnnThird is known from another library"):
        mine.bring({"Third": "TT"}, library)
    clash = Kernel("silu", lambda node: None, NpuKernel(silu, {"Silu": "TTT"}))
    with pytest.raises(PluginError) as caught:
        Brought.new([clash], mine)
    assert caught.value.where == f"the kernel for silu of {__name__}"
    assert LIBRARIES[0] in mine.lacking  # all others were looked through as well


# On simulated chips

SQUARE = """
typedef unsigned long size;
int aclnnMulGetWorkspaceSize(void *a, void *b, void *out, size *n, void **executor);
int aclnnMul(void *workspace, size n, void *executor, void *stream);
int aclnnThirdSquareGetWorkspaceSize(void *x, void *out, size *n, void **executor)
{
    return aclnnMulGetWorkspaceSize(x, x, out, n, executor);
}
int aclnnThirdSquare(void *workspace, size n, void *executor, void *stream)
{
    return aclnnMul(workspace, n, executor, stream);
}
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def square(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with one operator, as a package of custom operators has it."""
    out = tmp_path_factory.mktemp("third") / "libcust_opapi.so"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-x", "c", "-", "-o", str(out)]
    subprocess.run(command, input=SQUARE, text=True, check=True)
    return out


@pytest.fixture
def run(tmp_path: Path, tried_out: Callable[[str], None]) -> Run:
    """run(chip, kernels, *arguments, library=): Python with the third distribution, which
    brings these; what they leave in USED is there afterwards, and no device memory."""
    info = tmp_path / "umbel_third-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: umbel-third\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[umbel]\nthird = umbel_third\n")
    (tmp_path / "umbel_third.py").write_bytes((HERE / "third.py").read_bytes())

    def on(chip: str, kernels: str, *arguments: object, library: object = "") -> object:
        tried_out(chip)
        paths = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
        env = {**os.environ, "UMBEL_CANN_SIMULATOR": chip, "PYTHONPATH": paths}
        env |= {"KERNELS": kernels, "USED": str(tmp_path / "used"), "LIBRARY": str(library)}
        env["UMBEL_CANN_SIMULATOR_REPORT"] = str(tmp_path / "report.json")
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=240, env=env, cwd=tmp_path
        )
        if (report := tmp_path / "report.json").exists():
            assert not any(json.loads(report.read_text())["alive"].values())
        return done

    return on


def conformance(run: Run, chip: str, kernels: str, asked: str, **given: object) -> str:
    suite = ("-m", "pytest", "--pyargs", "umbel_kit.conformance", "-p", "no:cacheprovider")
    suite += ("--umbel-device", "cann", "--umbel-cases", "umbel_relu_sqr.cases")
    done = run(chip, kernels, *suite, "-q", "-k", f"test_operation and {asked}", **given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("chip", CHIPS)
def test_an_operation_that_the_plugin_has(run: Run, tmp_path: Path, chip: str) -> None:
    """Computed by another's kernel, and right."""
    said = conformance(run, chip, "ssm_conv", "ssm_conv")
    assert "skipped" not in said
    assert "ssm_conv" in (tmp_path / "used").read_text()


@pytest.mark.parametrize(
    ("chip", "dtype", "limit"),
    [
        ("310B", "f16", 5e-7),
        ("310P", "f16", 5e-7),
        ("310P", "f32", 5e-7),
        ("910B", "f32", 1e-7),
    ],
)
def test_it_is_as_exact(run: Run, tmp_path: Path, chip: str, dtype: str, limit: float) -> None:
    """Over the shapes of llama.cpp's test and longer ones."""
    done = run(chip, "ssm_conv", HERE / "state_space.py", dtype)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    errors = [error for case, error in told.items() if case.startswith("ssm_conv")]
    assert len(errors) == 30
    assert max(errors) < limit
    assert "ssm_conv" in (tmp_path / "used").read_text()


@pytest.mark.parametrize("chip", CHIPS)
def test_an_operator_of_its_own(run: Run, tmp_path: Path, chip: str, square: Path) -> None:
    said = conformance(run, chip, "square", "sqr and not relu_sqr", library=square)
    assert "skipped" not in said
    assert "sqr" in (tmp_path / "used").read_text()


@pytest.mark.parametrize("chip", ["310P", "910B"])
def test_a_new_operation(run: Run, chip: str) -> None:
    """That of the example, by a kernel that another brings; a 310B has no Relu."""
    said = conformance(run, chip, "relu_sqr", "relu_sqr")
    assert "skipped" not in said
    assert "decomposed" not in said


def test_a_model(run: Run, tmp_path: Path) -> None:
    """A mamba whose convolution is another's: an independent implementation's logits."""
    done = run("910B", "ssm_conv", HERE / "figures.py", "mamba")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["mamba"]
    assert told["elsewhere"] == {}
    assert told["off"] < 1e-3
    assert "ssm_conv" in (tmp_path / "used").read_text()


def story(run: Run, kernels: str, *more: str) -> subprocess.CompletedProcess[str]:
    asked = ("-m", "umbel", "run", STORY, "Once upon a time", "--temp", "0", "-n", "8")
    return run("910B", kernels, *asked, "--device", "cann:0", *more)


def test_a_refusal_is_told(run: Run) -> None:
    done = story(run, "choosy")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(", there was a little girl")
    assert "the kernel for swiglu of umbel-third 1.5 does not take" in done.stderr
    assert "it is too small for this" in done.stderr
    plan = run("910B", "attention", "-m", "umbel", "plan", STORY, "--device", "cann:0")
    why = (
        "it has no kernel for kv_attention; the kernel for kv_attention of umbel-third 1.5: it"
    )
    assert why in plan.stdout, plan.stderr


@pytest.mark.parametrize(
    ("kernels", "told"),
    [
        ("wrong", "umbel-third 1.5 brings a kernel for swiglu that is none for an NPU"),
        ("broken", "the kernel for swiglu of umbel-third 1.5 failed: KeyError: "),
        ("crooked", "the kernel for swiglu of umbel-third 1.5, on cann:0"),
    ],
)
def test_a_bad_kernel_is_named(run: Run, kernels: str, told: str) -> None:
    """One typed error, which says whose fault it is."""
    done = story(run, kernels)
    assert done.returncode in (1, 2), done.stdout  # not killed
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_list_of_them(run: Run, square: Path) -> None:
    """With what is wrong with each."""
    asked = ("-m", "umbel", "cann", "kernels")
    ready = run("310B", "ssm_conv,square", *asked, library=square)
    assert ready.returncode == 0, ready.stderr
    rows = [line.split() for line in ready.stdout.splitlines()]
    assert ["ssm_conv", "umbel-third", "1.5", "ready"] in rows
    assert ["sqr", "umbel-third", "1.5", "ready"] in rows
    gone = run("310B", "square", *asked, library="/nowhere/libcust_opapi.so")
    assert "aclnnThirdSquare of /nowhere/libcust_opapi.so: " in gone.stdout
    assert "cannot open shared object file" in gone.stdout
