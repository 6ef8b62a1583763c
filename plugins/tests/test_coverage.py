"""The table of what runs where: each kind of answer, and the reason that decides."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from umbel.gguf.types import BY_NAME, DType
from umbel.graph import Role, Tensor
from umbel.hookspecs import Device, DeviceInfo, hookimpl
from umbel.ops import OPS
from umbel.plan import Target
from umbel.plugins import Plugins
from umbel_kit.cases import CASES, Arg, Case
from umbel_kit.coverage import BEGIN, table


@attrs.define
class Memory:
    """That takes no weights but in one dtype, where that is given."""

    kept: str = ""
    alignment: int = 64
    max_size: int = 1 << 30
    is_host: bool = False
    separate: bool = False
    in_place: bool = False

    def accepts(self, tensor: Tensor) -> DType:
        return BY_NAME[self.kept] if self.kept else tensor.dtype

    def alloc_size(self, tensor):
        return tensor.nbytes

    def readable_by(self, device):
        return False

    def allocate(self, nbytes, usage):
        raise MemoryError

    def store(self, tensor, array):
        raise MemoryError


@attrs.define(eq=False)
class Backend:
    """A device that says why it refuses a node, and computes nothing."""

    why: Callable[[Tensor], str | None]
    memory: Memory
    UMBEL_API = 1

    @hookimpl
    def devices(self):
        return [Device("some:0", "for tests", 1)]

    @hookimpl
    def open(self, device):
        return DeviceInfo()

    @hookimpl
    def buffer_type(self):
        return self.memory

    @hookimpl
    def op_supported(self, node):
        return self.why(node)

    @hookimpl
    def graph_compute(self, graph):
        raise RuntimeError


def target(why: Callable[[Tensor], str | None], kept: str = "") -> Target:
    found = Plugins(only="")
    found.add("some", Backend(why, Memory(kept)))
    return found.open(found.find("some"))


def refusing(*names: str) -> Target:
    return target(lambda node: f"no {node.op.name} here" if node.op.name in names else None)


def rows(device: Target, *ops: str, of: list[Case] | None = None) -> list[tuple[str, ...]]:
    """The rows of these operations: name, what the answer is about, answer."""
    chosen = [case for case in CASES if case.op in ops] if of is None else of
    lines = table([device], OPS, chosen).splitlines()
    return [
        tuple(c.strip(" `") for c in line.split("|")[1:-1])
        for line in lines
        if line[:3] == "| `"
    ]


def answer(device: Target, op: str) -> str:
    ((name, _, said),) = rows(device, op)
    assert name == op
    return said


def test_yes_and_no():
    """A refusal is shown in the words of the device."""
    device = refusing("top_k")
    assert answer(device, "add") == "yes"
    assert answer(device, "top_k") == "no: no top_k here"


def test_decomposed():
    """Refused, and all the pieces are there."""
    assert answer(refusing("swiglu"), "swiglu") == "decomposed"


def test_rows_later():
    """Of a device that cannot scatter the plan writes the rows, of attention too."""
    device = refusing("set_rows", "kv_attention")
    assert {said for *_, said in rows(device, "set_rows", "kv_attention")} == {"rows later"}


@pytest.mark.parametrize(
    ("names", "op", "expected"),
    [
        (("swiglu", "silu", "sigmoid"), "swiglu", "no: it needs silu: it needs"),
        (("ssm_scan", "exp"), "ssm_scan", "no: it needs exp: no exp here"),
        (("ssm_scan", "get_rows"), "ssm_scan", "no: it needs get_rows: no get_rows here"),
        (("geglu", "gelu", "sigmoid"), "geglu", "no: it needs gelu: it needs sigmoid: no"),
    ],
)
def test_the_reason_that_decides(names, op, expected):
    """Not that the whole is refused, but which piece keeps it from being decomposed."""
    said = answer(refusing(*names), op)
    assert said.startswith(expected)
    assert f"no {op} here" not in said


def test_the_last_form_decides():
    """Attention of a device that cannot scatter fails at what remains to be computed: the
    reading of the cache, which is not needed where a step has all the tokens."""
    device = refusing("kv_attention", "set_rows", "get_rows")
    reasons = {said.partition(": ")[2] for *_, said in rows(device, "kv_attention")}
    assert reasons == {"it needs get_rows: no get_rows here"}


def test_in_part():
    """Where shapes decide, the reason is that of a case that is refused."""
    device = target(lambda node: "too wide" if node.shape[-1] > 100 else None)
    assert answer(device, "add") == "in part: too wide"


def test_yes_or_decomposed():
    """Where all of it is computed, but not all as it is."""
    no = "there are factors"
    device = target(lambda n: no if n.op.name == "rms_norm" and len(n.inputs) > 1 else None)
    assert answer(device, "rms_norm") == f"yes or decomposed: {no}"


def test_by_dtype():
    """Rows of their own for what is answered otherwise; all other types in one."""

    def why(node: Tensor) -> str | None:
        odd = any(t.dtype.name == "q8_0" for t in node.inputs)
        return "no q8_0" if odd and node.op.name == "mul_mat" else None

    assert rows(target(why), "mul_mat") == [
        ("mul_mat", "weights, all types but q8_0; activations", "yes"),
        ("mul_mat", "weights q8_0", "no: no q8_0"),
    ]


def test_weights_that_are_converted():
    """The dtype that they are kept in is told, except of those that have it."""
    device = target(lambda node: None, kept="f16")
    assert rows(device, "mul_mat") == [
        ("mul_mat", "weights, all types but f16", "yes, as f16"),
        ("mul_mat", "weights f16; activations", "yes"),
    ]


def test_inputs_that_cannot_be_decomposed():
    """An answer, not a failure: the case is refused as it is, and has no other form."""
    experts = Arg((6, 9, 32), "f32", Role.WEIGHT, layout="turned")
    args = experts, Arg((3, 1, 32)), Arg((3, 2), "i32", values="numbers below 6")
    ((_, _, said),) = rows(refusing("mul_mat_id"), of=[Case("mul_mat_id", args)])
    assert said == "no: it cannot be decomposed: reshape: the inputs do not fit"


def test_a_reason_stays_in_its_cell():
    """Whatever a plugin writes, the table remains one."""
    device = target(lambda node: "a | b\nc" if node.op.name == "add" else None)
    assert answer(device, "add") == "no: a / b c"


def test_all_operations_are_there():
    """Those of the suite, which are all but views; twice the same text."""
    device = refusing("swiglu")
    text = table([device], OPS)
    assert text.startswith(f"{BEGIN}\n\n| operation | of | `some:0` (f32) |\n")
    assert {n for n, op in OPS.items() if not op.view} == {
        name for name, *_ in rows(device, *OPS)
    }
    assert text == table([refusing("swiglu")], OPS)
