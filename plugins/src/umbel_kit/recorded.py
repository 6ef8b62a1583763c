"""One node as data: its operation, attributes, inputs and how they lie in memory.

It can be made ready for any device, and kept in a file (a case) that runs again elsewhere. The
file is a NumPy archive (.npz): `header` (JSON as bytes) and the arrays `leaf0`, `leaf1` ...,
as a model file would have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from umbel.backend import one_line
from umbel.errors import GraphError, ModelFormatError, OptionError
from umbel.gguf.types import BY_NAME, F32, DType
from umbel.graph import Builder, Operation, Role, Tensor
from umbel.plan import Target
from umbel.plan.place import FLOATS
from umbel.state.store import write_atomically

from umbel_kit.cases import EXACT, Case
from umbel_kit.device import Call, converted, reference

FORMAT = "umbel case 1"
View = tuple[str, Mapping[str, Any]]  # an operation that moves nothing, and its attributes


@attrs.frozen(eq=False)
class Leaf:
    """Memory that a node reads: typed values, or rows of bytes."""

    name: str
    role: Role
    dtype: DType  # of a weight: as the file has it
    shape: tuple[int, ...]
    array: np.ndarray


@attrs.frozen(eq=False)
class Recorded:
    """One node with all that it needs. An input is a leaf's number, and views of that leaf."""

    op: str
    name: str
    how: Mapping[str, Any]  # its attributes
    dtype: DType  # of the result where the node ran
    leaves: Sequence[Leaf]
    inputs: Sequence[tuple[int, Sequence[View]]]
    story: Mapping[str, str] = attrs.field(factory=dict)  # where it comes from, for people

    def ready(self, target: Target | None, ops: Mapping[str, Operation]) -> Call:
        """As `target` would see it; without one, everything in float32 and as the file has it.

        A cast keeps the dtypes that it was recorded with: they are what it is about.
        """
        leaves: list[Tensor] = []
        arrays: dict[Tensor, np.ndarray] = {}
        sources: dict[Tensor, tuple[Tensor, np.ndarray]] = {}
        exact = {self.inputs[i][0] for i in EXACT.get(self.op, ()) if i < len(self.inputs)}
        for i, leaf in enumerate(self.leaves):
            dtype = leaf.dtype if self.op == "cast" else _dtype_on(target, leaf)
            array = leaf.array if i in exact else converted(leaf.array, leaf.dtype, dtype)
            data = array if leaf.role is Role.CONST else None
            t = Tensor(leaf.shape, dtype, leaf.role, leaf.name, data=data)
            leaves.append(t)
            if leaf.role is Role.WEIGHT:
                sources[t] = Tensor(leaf.shape, leaf.dtype, leaf.role, leaf.name), leaf.array
            if leaf.role is not Role.CONST:
                arrays[t] = array
        build = Builder(ops)
        inputs = [self._input(build, leaves[i], views) for i, views in self.inputs]
        stored_as = self._result_dtype(target, ops)
        node = build.apply(
            ops[self.op], *inputs, name=self.name, stored_as=stored_as, **self.how
        )
        return Call(Case(self.op, ()), build.graph([node]), arrays, sources)

    def _input(self, build: Builder, t: Tensor, views: Sequence[View]) -> Tensor:
        for op, how in views:
            t = build.apply(build.ops[op], t, **how)
        return t

    def _result_dtype(
        self, target: Target | None, ops: Mapping[str, Operation]
    ) -> DType | None:
        if ops[self.op].writes or self.dtype not in FLOATS:
            return None
        if self.op == "cast":
            return self.dtype
        return target.compute_dtype if target else F32


def _dtype_on(target: Target | None, leaf: Leaf) -> DType:
    """The dtype that the leaf has in the memory of `target`."""
    if leaf.role is Role.WEIGHT:
        weight = Tensor(leaf.shape, leaf.dtype, leaf.role, leaf.name)
        return target.buffer_type.accepts(weight) if target else leaf.dtype
    if leaf.role is Role.STATE or leaf.dtype not in FLOATS:
        return leaf.dtype
    return target.compute_dtype if target else F32


# files


def save(path: Path, case: Recorded) -> None:
    """Writes the case; the file is whole or not there."""
    leaves = [
        {"name": t.name, "role": t.role.value, "dtype": t.dtype.name, "shape": t.shape}
        for t in case.leaves
    ]
    about = {"format": FORMAT, "op": case.op, "name": case.name, "dtype": case.dtype.name}
    header = {**about, "leaves": leaves, "inputs": case.inputs, "story": dict(case.story)}
    try:
        text = json.dumps({**header, "attrs": dict(case.how)})
    except TypeError as error:
        msg = f"the attributes of {case.op} cannot be written to a case"
        raise OptionError(msg, where=path, expected="numbers, texts and tuples") from error
    arrays: dict[str, Any] = {"header": np.frombuffer(text.encode(), np.uint8)}
    arrays |= {f"leaf{i}": t.array for i, t in enumerate(case.leaves)}
    write_atomically(path, lambda file: np.savez(file, **arrays))


def load(path: Path, ops: Mapping[str, Operation]) -> Recorded:
    """The case of a file; `OptionError` where it is of another version or operation."""
    try:
        # Not `numpy.load`: it takes what is no archive for a pickle, and recommends those.
        with path.open("rb") as file, np.lib.npyio.NpzFile(file) as archive:
            arrays = dict(archive)
        header = dict(json.loads(arrays["header"].tobytes()))
        if not str(header["format"]).startswith("umbel case "):
            raise ValueError(header["format"])
    except FileNotFoundError as error:
        msg = "there is no such file"
        raise OptionError(msg, where=path) from error
    except Exception as error:  # whatever NumPy, zipfile and json think of other bytes
        msg = "this is no case"
        raise ModelFormatError(msg, where=path, do="`--save` writes one") from error
    if header["format"] != FORMAT:
        msg, do = "the case is of another version", "write it again with this version of Umbel"
        raise OptionError(msg, where=path, expected=FORMAT, got=header["format"], do=do)
    if header.get("op") not in ops:
        msg = f"there is no operation {header.get('op')!r}"
        raise OptionError(msg, where=path, do="install the plugin that brings it")
    try:
        case = _read(header, arrays)
        reference(case.ready(None, ops))  # an index may be out of its range
    except Exception as error:  # something is missing, or contradicts the rest
        msg = "the case is damaged"
        raise ModelFormatError(msg, where=path, got=one_line(error)) from error
    return case


def _read(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Recorded:
    leaves = [_read_leaf(x, arrays[f"leaf{i}"]) for i, x in enumerate(header["leaves"])]
    inputs = [
        (range(len(leaves))[int(i)], [(str(op), _hashable(how)) for op, how in views])
        for i, views in header["inputs"]
    ]
    how, dtype = _hashable(header["attrs"]), BY_NAME[header["dtype"]]
    story = {str(k): str(v) for k, v in header["story"].items()}
    return Recorded(header["op"], str(header["name"]), how, dtype, leaves, inputs, story)


def _read_leaf(told: Mapping[str, Any], array: np.ndarray) -> Leaf:
    dtype, shape = BY_NAME[told["dtype"]], tuple(map(int, told["shape"]))
    leaf = Leaf(str(told["name"]), Role(told["role"]), dtype, shape, array)
    kind = np.dtype(np.uint8) if dtype.numpy is None else dtype.numpy
    rows = (*shape[:-1], dtype.row_bytes(shape[-1])) if dtype.numpy is None else shape
    if (array.dtype, array.shape) != (kind, rows):
        msg = f"the values of {leaf.name} are of another shape or dtype"
        raise GraphError(msg, expected=rows, got=array.shape)
    return leaf


def _hashable(value: Any) -> Any:
    """Attributes as a graph has them: lists of JSON are tuples."""
    if isinstance(value, dict):
        return {name: _hashable(v) for name, v in value.items()}
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
