"""The suite can fail: the host, made wrong in one way at a time."""

from collections.abc import Callable
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from umbel.errors import DeviceError
from umbel.graph import Role
from umbel.hookspecs import SplitGraph
from umbel.host.memory import HostBufferType
from umbel.ops import OPS
from umbel.plan import Target
from umbel_kit.cases import Arg, Case
from umbel_kit.device import GUARD, Subject, fault, prepare, refusal

ADD = Case("add", (Arg((4, 8)), Arg((4, 8))))
TOP = Case("top_k", (Arg((4, 8)),), {"k": 3})
SCATTER = Case(
    "set_rows",
    (
        Arg((9, 32), "f32", Role.STATE),
        Arg((2, 32)),
        Arg((2,), "i32", values="rows below 8"),  # the last is never asked for
    ),
)
QUANTISED = attrs.evolve(
    SCATTER, args=(attrs.evolve(SCATTER.args[0], dtype="q8_0"), *SCATTER.args[1:])
)
Mischief = Callable[[SplitGraph, Callable[[], None]], None]


def wrong(host: Target, mischief: Mischief) -> Target:
    """The host, whose split is computed by `mischief`: it gets the right way to do it."""

    def graph_compute(device: object, split: SplitGraph) -> None:
        mischief(split, lambda: host.hooks.graph_compute(device, split))

    return attrs.evolve(host, hooks=hooks_of(host, graph_compute=graph_compute))


def hooks_of(target: Target, **others: object) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(target.hooks), **others})


def said(target: Target, case: Case) -> str:
    """What the suite says of a case."""
    call = prepare(case, target, OPS)
    try:
        return fault(call, target.info.compute_dtype, *Subject(target).run(call))
    except AssertionError as error:
        return str(error)


def memory(split: SplitGraph, at: int = -1) -> np.ndarray:
    """The bytes of the buffer from an input on (by its place), or from the result on."""
    node = split.nodes[0]
    slot = split.slots[(node if at < 0 else node.inputs[at]).storage]
    return slot.buffer.map("rw")[slot.offset :]


def result(split: SplitGraph) -> np.ndarray:
    node = split.nodes[0]
    return memory(split)[: node.nbytes].view(node.dtype.numpy).reshape(node.shape)


@pytest.mark.parametrize("case", [ADD, TOP, SCATTER, QUANTISED], ids=str)
def test_right(host, case):
    """Nothing is said of what is right."""
    assert said(host, case) == ""
    assert said(wrong(host, lambda split, run: run()), case) == ""


def test_a_little_off(host):
    """More than the limit is told, less is not."""

    def off(by: float) -> Target:
        def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
            run()
            result(split)[...] *= 1 + by

        return wrong(host, mischief)

    assert said(off(1e-4), ADD) == ""
    assert said(off(1e-3), ADD).startswith(
        "NMSE 1e-06, at most 1e-07 is allowed; the largest difference is "
    )


def test_not_written(host):
    """The last element keeps what was there before."""

    def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
        before = result(split)[-1, -1].copy()
        run()
        result(split)[-1, -1] = before

    target = wrong(host, mischief)
    assert said(target, ADD).startswith("nan at [3, 7], expected ")
    assert said(target, TOP).startswith("-1 at [3, 2], expected ")


def test_nothing_done(host):
    """A device that does nothing at all is wrong about everything."""
    target = wrong(host, lambda split, run: None)
    assert "nan at [0, 0]" in said(target, ADD)
    assert "-1 at [0, 0]" in said(target, TOP)
    for case in (SCATTER, QUANTISED):
        assert "NMSE" in said(target, case)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite(host, bad):
    """One NaN or infinity where the reference is finite."""

    def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
        run()
        result(split)[1, 2] = bad

    assert said(wrong(host, mischief), ADD).startswith(f"{bad} at [1, 2], expected ")


@pytest.mark.parametrize("away", [-1, 128, -GUARD // 2, GUARD - 64])
def test_beside_the_result(host, away):
    """One byte just before, just behind, or further off."""

    def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
        run()
        slot = split.slots[split.nodes[0]]
        slot.buffer.map("rw")[slot.offset + away] = 0

    before = "add" if away < 0 else "the end"
    assert said(wrong(host, mischief), ADD).startswith(f"the bytes before {before} were over")


@pytest.mark.parametrize("away", [-1, 128])
def test_beside_an_input(host, away):
    """The same around what is read."""

    def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
        run()
        slot = split.slots[split.nodes[0].inputs[1]]
        slot.buffer.map("rw")[slot.offset + away] ^= 1

    before = "in1" if away < 0 else "add"
    assert f"the bytes before {before} were overwritten" in said(wrong(host, mischief), ADD)


def test_input_overwritten(host):
    """As a kernel does that works in place unasked."""

    def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
        run()
        memory(split, 1)[: split.nodes[0].nbytes] = memory(split)[: split.nodes[0].nbytes]

    assert said(wrong(host, mischief), ADD).startswith("in1 was written to, which is an input")


@pytest.mark.parametrize("case", [SCATTER, QUANTISED], ids=str)
def test_state_row_unasked(host, case):
    """A row that no index names changes by one bit."""

    def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
        run()
        state = split.nodes[0].inputs[0]
        memory(split, 0)[state.nbytes - 1] ^= 1

    assert said(wrong(host, mischief), case) == "row 8 of in0 was written to, unasked"


@pytest.mark.parametrize("case", [SCATTER, QUANTISED], ids=str)
def test_behind_a_state(host, case):
    """A row too many is written."""

    def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
        run()
        memory(split, 0)[split.nodes[0].inputs[0].nbytes] = 0

    assert "before what follows in0 were overwritten" in said(wrong(host, mischief), case)


def test_state_row_wrong(host):
    """A row that is asked for holds another's values."""

    def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
        _, new, _ = split.nodes[0].inputs
        rows = memory(split, 1)[: new.nbytes].reshape(2, -1)
        rows[...] = rows[::-1].copy()
        run()
        rows[...] = rows[::-1].copy()

    assert said(wrong(host, mischief), SCATTER).startswith("NMSE ")
    assert said(wrong(host, mischief), QUANTISED).startswith("NMSE ")


def test_wrong_shape(host):
    """The result lies there with its axes swapped; a shape that is not that of the node."""

    def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
        run()
        turned = result(split).T.copy()
        result(split).reshape(-1)[...] = turned.reshape(-1)

    assert said(wrong(host, mischief), ADD).startswith("NMSE ")
    call = prepare(ADD, host, OPS)
    assert fault(call, "f32", np.zeros((8, 4)), {}) == "shape [8, 4], expected [4, 8]"


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_wrong_dtype(host, dtype):
    """Half of what was promised, or twice as much."""

    def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
        run()
        raw = np.ascontiguousarray(result(split).astype(dtype)).reshape(-1).view(np.uint8)
        memory(split)[: raw.size] = raw

    assert said(wrong(host, mischief), ADD) != ""


def test_error_at_sync(host):
    """A failure that is only told when the device is waited for is not lost."""

    def sync(device: object) -> None:
        msg = "the queue broke"
        raise DeviceError(msg)

    target = attrs.evolve(host, hooks=hooks_of(host, sync=sync))
    with pytest.raises(DeviceError, match="the queue broke"):
        said(target, ADD)


def test_forgotten(host):
    """What was compiled for a call is dropped after it, also when it failed."""
    seen, gone = [], []

    def graph_compute(device: object, split: SplitGraph) -> None:
        seen.append(split.uid)
        msg = "no"
        raise DeviceError(msg)

    hooks = hooks_of(
        host, graph_compute=graph_compute, forget=lambda device, uid: gone.append(uid)
    )
    with pytest.raises(DeviceError):
        said(attrs.evolve(host, hooks=hooks), ADD)
    assert seen == gone
    assert len(seen) == 1


@pytest.mark.parametrize("answer", [3, False, "", "  ", b"no"])
def test_answer_that_is_no_reason(host, answer):
    """op_supported says None or why not, in words."""
    hooks = hooks_of(host, op_supported=lambda device, node: answer)
    target = attrs.evolve(host, hooks=hooks)
    with pytest.raises(AssertionError, match="expected None or a reason"):
        refusal(prepare(ADD, target, OPS), target)


def test_answers(host):
    """Both that are right are handed on."""
    for answer in (None, "add is not here"):
        hooks = hooks_of(host, op_supported=lambda device, node, answer=answer: answer)
        target = attrs.evolve(host, hooks=hooks)
        assert refusal(prepare(ADD, target, OPS), target) == answer


class Padded(HostBufferType):
    """Memory whose tensors are followed by 64 bytes of the device's own."""

    def alloc_size(self, tensor):
        return tensor.nbytes + 64


@pytest.mark.parametrize(("away", "good"), [(0, True), (63, True), (64, False)])
@pytest.mark.parametrize("case", [ADD, SCATTER], ids=str)
def test_padding(host, case, away, good):
    """A device may write to its padding, and not behind it."""

    def mischief(split: SplitGraph, run: Callable[[], None]) -> None:
        run()
        node = split.nodes[0]
        memory(split)[node.nbytes + away] = 1

    target = attrs.evolve(wrong(host, mischief), buffer_type=Padded(1 << 20))
    assert (said(target, case) == "") is good


@pytest.mark.parametrize("case", [ADD, TOP, SCATTER, QUANTISED], ids=str)
def test_separate(host, case):
    """Where each tensor has memory of its own there is nothing beside it."""
    kind = HostBufferType(1 << 20, separate=True)
    assert said(attrs.evolve(host, buffer_type=kind), case) == ""
    target = wrong(host, lambda split, run: None)
    assert said(attrs.evolve(target, buffer_type=kind), case) != ""


def test_weights_that_are_views(host):
    """A view of a stored weight is what the operation gets; the reference too."""
    part = Arg((5, 64), "q4_0", Role.WEIGHT, layout="rows")
    case = Case("mul_mat", (part, Arg((3, 64))))
    call = prepare(case, host, OPS)
    assert call.node.inputs[0].base is not None
    ((leaf, (source, array)),) = call.sources.items()
    assert (leaf.shape, source.shape, len(array)) == ((8, 64), (8, 64), 8)
    assert said(host, case) == ""
