"""One node alone on a device, and how far its result is from the reference's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import attrs
import numpy as np
from umbel.errors import CancelledError, OutOfMemoryError, UmbelError
from umbel.gguf.types import F32, dequantise
from umbel.graph import Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.plan import Stop, Target

from umbel_kit import compare
from umbel_kit.device import Call, Subject, reference

Result = tuple[np.ndarray, dict[str, np.ndarray]]  # the value, and what the states hold


@attrs.frozen
class Finding:
    """How far a result is from the reference's, and what is wrong, if anything."""

    nmse: float
    limit: float
    fault: str = ""

    @property
    def share(self) -> float:
        """The part of the limit that is used up; of a limit of nothing, all or nothing."""
        return self.nmse / self.limit if self.limit else math.inf if self.nmse else 0.0


class _Alone(Subject):
    """The memory of one node; constants, which no case of the suite has, are stored too."""

    def split(self, call: Call) -> SplitGraph:
        for t in call.node.inputs:
            if t.storage.role is Role.CONST and t.storage.data is not None:
                self.slots[t.storage] = Slot(self.kind.store(t.storage, t.storage.data))
        return super().split(call)


def by_reference(call: Call) -> Result:
    """What is right."""
    return _by_name(*reference(call))


def _by_name(value: np.ndarray, states: Mapping[Tensor, np.ndarray]) -> Result:
    return value, {t.name: array for t, array in states.items()}


def run(target: Target, call: Call) -> Result | str:
    """What the device computes, or what it says in place of that.

    On a thread of its own, so that Ctrl-C is heard whatever the device is doing.
    """
    stop = Stop()
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(_run, target, call, stop).result()
        except KeyboardInterrupt:
            stop.ask()
            raise


def _run(target: Target, call: Call, stop: Stop) -> Result | str:
    try:
        with stop.holding([target]):
            return _by_name(*_Alone(target).run(call))
    except (CancelledError, OutOfMemoryError):
        raise
    except (UmbelError, AssertionError) as error:
        return str(error).partition("\n")[0]


def judge(
    call: Call,
    target: Target,
    expected: Result,
    actual: Result | str,
    limit: float | None = None,
) -> Finding:
    """The worst of the result and the states. `limit` stands in the place of the usual one.

    Row 0 of a state is scratch: padding writes it in any order.
    """
    dtype, op, stored = target.info.compute_dtype, call.case.op, _stored(call)
    if isinstance(actual, str):
        most = compare.limit(op, dtype, stored) if limit is None else limit
        return Finding(math.inf, most, actual)
    parts = [] if call.writes else [(op, "", expected[0], actual[0])]
    for t in (t for t in call.arrays if t.role is Role.STATE):
        wanted, got = (dequantise(r[1][t.name][1:], t.dtype) for r in (expected, actual))
        parts.append(("state", f"{t.name}: ", wanted, got))
    found = []
    for kind, name, wanted, got in parts:
        most = compare.limit(kind, dtype, stored) if limit is None else limit
        error = _nmse(wanted, got)
        fault = compare.fault(kind, dtype, wanted, got, stored) or ""
        if limit is not None and error <= most:
            fault = ""
        elif limit is not None and (math.isfinite(error) or not fault):
            fault = f"NMSE {error:.3g}, at most {most:g} is allowed"
        found.append(Finding(error, most, fault and name + fault))
    return max(found, key=lambda f: (bool(f.fault), f.share))


def _stored(call: Call) -> str:
    """The dtype of the weight or cache that is read, the coarsest; "f32" without one."""
    leaves = [t for t in call.arrays if t.role in (Role.WEIGHT, Role.STATE)]
    kinds = [t.dtype for t in leaves if len(t.shape) > 1] or [F32]
    return min(kinds, key=lambda d: d.block_bytes / d.block).name


def _nmse(expected: np.ndarray, actual: np.ndarray) -> float:
    """Of the values that the reference has a finite answer for."""
    if expected.shape != actual.shape:
        return math.inf
    finite = np.isfinite(expected)
    return compare.nmse(expected[finite], actual[finite])
