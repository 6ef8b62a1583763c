"""A graph as a MIL program, in the form that Orion found the Neural Engine's compiler to take.

Every argument is a named constant (constraint 12), convolutions have no bias (13), outputs are
results of statements (14), `concat` and `gelu` do not occur (1, 10). Names of inputs and
outputs come with the graph; `port_name` makes them so that sorted and declared order agree
(3, 19).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np

from umbel_ane.compiler.ir import ELEMENTWISE, FP16, INT32, Graph, Node, Shape4
from umbel_ane.compiler.reference import constant
from umbel_ane.compiler.weights import KINDS, Files, WeightFile
from umbel_ane.mil.program import (
    Blob,
    Function,
    Literal,
    Program,
    Ref,
    Statement,
    Type,
    Value,
)
from umbel_ane.profile import Profile

VERSION, OPSET = "1.3", "ios18"
BUILD_INFO = {  # what Orion writes; a program without it is not known to compile
    "coremlc-component-MIL": "3510.2.1",
    "coremlc-version": "3505.4.1",
    "coremltools-component-milinternal": "",
    "coremltools-version": "9.0",
}
INLINE = 64  # constants of at most so many values are written out in the text


def port_name(prefix: str, index: int, of: int) -> str:
    """a00, a01 ...: as many digits as the last of them needs, at least two."""
    return f"{prefix}{index:0{max(2, len(str(of - 1)))}}"


@attrs.frozen(eq=False)
class Emitted:
    program: Program
    weights: Mapping[str, WeightFile]  # by their path in the text


def emit(
    graph: Graph,
    inputs: Sequence[str],
    outputs: Sequence[str],
    profile: Profile,
    version: str | None = None,
) -> Emitted:
    """The program of a graph; `inputs` and `outputs` are its names in the declared order.

    The path of a weight file carries a hash of what is in it, as a program may be known by its
    text and the paths alone. With a `version` that hash is one of the version and the weights'
    keys, and no weight is read.
    """
    nodes = graph.nodes()
    files = Files(one=profile.one_file)
    for node in nodes:
        if node.op == "const" and not inline(node):
            files.add(node)
    writer = _Writer(files.placed(version))
    given = {node.name: node for node in nodes if node.op == "input"}
    read = [name for name in inputs if name in given]
    values = [Value(name, _type(given[name])) for name in read]
    writer.names.update({given[name]: name for name in read})
    writer.write(nodes, {name: graph.outputs[name] for name in outputs})
    main = Function("main", OPSET, tuple(values), tuple(writer.statements), tuple(outputs))
    return Emitted(Program(VERSION, (main,), BUILD_INFO), files.files)


def inline(node: Node) -> bool:
    """Whether a constant is written in the text."""
    return node.size <= INLINE


def _type(node: Node, dims: Shape4 | None = None) -> Type:
    return Type(node.dtype, dims or node.shape)


@attrs.define(eq=False)
class _Writer:
    """Statements for nodes, each name given once."""

    blobs: Mapping[Node, tuple[Blob, ...]]  # a constant's values; indices, then table
    names: dict[Node, str] = attrs.field(factory=dict)
    statements: list[Statement] = attrs.field(factory=list)
    _consts: dict[tuple[Type, bytes], str] = attrs.field(factory=dict)
    _splits: dict[tuple[object, ...], list[str]] = attrs.field(factory=dict)
    _taken: dict[Node, str] = attrs.field(factory=dict)  # results that are outputs
    _parts: dict[tuple[object, ...], dict[int, Node]] = attrs.field(factory=dict)

    def write(self, nodes: Sequence[Node], outputs: Mapping[str, Node]) -> None:
        copies: dict[str, Node] = {}
        for name, node in outputs.items():
            if node.op in ("input", "const") or node in self._taken:
                copies[name] = node
            else:
                self._taken[node] = name
        for node in nodes:
            if node.op == "split":
                self._parts.setdefault(_split_key(node), {})[node.attrs["index"]] = node
        for node in nodes:
            if node.op not in ("input", "const") and node not in self.names:
                self._statement(node)
        for name, node in copies.items():
            self._add("identity", [Value(name, _type(node))], x=self._value(node))

    # statements

    def _statement(self, node: Node) -> None:
        if node.op == "split":
            self._split(node)
            return
        if node.op in ELEMENTWISE:
            args = self._operands(node)
        else:
            args = {k: self._value(n) for k, n in zip("xy", node.inputs, strict=False)}
        op, more = _FORMS.get(node.op, _plain)(self, node)
        if node.op == "conv1x1":
            args = {"x": args["x"], "weight": args["y"]}
        name = self._name(node)
        self._add(op, [Value(name, _type(node))], **{**args, **more})

    def _split(self, node: Node) -> None:
        """All parts are one statement, those that nobody reads too."""
        x, axis, sizes = node.inputs[0], node.attrs["axis"], node.attrs["sizes"]
        wanted = self._parts[_split_key(node)]
        results = []
        for index, size in enumerate(sizes):
            dims = tuple(size if a == axis else n for a, n in enumerate(x.shape))
            name = f"v{len(self.statements)}_{index}"
            if index in wanted:
                name = self._name(wanted[index], name)
            results.append(Value(name, Type(x.dtype, dims)))
        how = (
            {"num_splits": self._int(len(sizes))}
            if len(set(sizes)) == 1
            else {"split_sizes": self._ints(sizes)}
        )
        self._add("split", results, x=self._value(x), axis=self._int(axis), **how)

    def _operands(self, node: Node) -> dict[str, Ref]:
        """Of an elementwise operation: a single number is a scalar beside a tensor."""
        x, y = node.inputs
        fixed = [n.op == "const" and n.size == 1 for n in (x, y)]
        refs = [
            self._scalar(n) if alone and not all(fixed) else self._value(n)
            for n, alone in zip((x, y), fixed, strict=True)
        ]
        return {"x": refs[0], "y": refs[1]}

    def _add(self, op: str, results: Sequence[Value], **args: Ref | Literal) -> None:
        called = {"name": _string(results[0].name)}
        self.statements.append(Statement(op, tuple(results), args, called))

    def _name(self, node: Node, name: str = "") -> str:
        self.names[node] = self._taken.get(node) or name or f"v{len(self.statements)}"
        return self.names[node]

    # values

    def _value(self, node: Node) -> Ref:
        if node not in self.names:
            if node in self.blobs:
                self._stored(node)
            else:
                values = constant(node).astype(KINDS[node.dtype])
                return self._const(Literal(_type(node), values))
        return Ref(self.names[node])

    def _stored(self, node: Node) -> None:
        """A constant that lies in a weight file."""
        name = self.names[node] = f"w{len(self.statements)}"
        value, blobs = Value(name, _type(node)), self.blobs[node]
        called = {"name": _string(name)}
        if len(blobs) == 1:
            called["val"] = Literal(value.type, blobs[0])
            self.statements.append(Statement("const", (value,), {}, called))
            return
        assert node.weight is not None
        assert node.weight.palette is not None
        palette = node.weight.palette
        table = Type(FP16, (palette.groups, 1, 1, 1, 1 << palette.bits, 1))
        args = {
            "indices": Literal(Type(f"uint{palette.bits}", node.shape), blobs[0]),
            "lut": Literal(table, blobs[1]),
        }
        self.statements.append(Statement("constexpr_lut_to_dense", (value,), args, called))

    def _scalar(self, node: Node) -> Ref:
        number = constant(node).astype(KINDS[node.dtype]).item()
        return self._const(Literal(Type(node.dtype), number))

    def _const(self, literal: Literal) -> Ref:
        """A named constant; equal ones have one name."""
        data = literal.data
        told = data.tobytes() if isinstance(data, np.ndarray) else repr(data).encode()
        key = literal.type, told
        if key not in self._consts:
            name = self._consts[key] = f"c{len(self.statements)}"
            called = {"name": _string(name), "val": literal}
            self.statements.append(Statement("const", (Value(name, literal.type),), {}, called))
        return Ref(self._consts[key])

    def _int(self, value: int) -> Ref:
        return self._const(Literal(Type(INT32), value))

    def _ints(self, values: Sequence[int]) -> Ref:
        return self._const(Literal(Type(INT32, (len(values),)), np.asarray(values, np.int32)))

    def _bool(self, value: bool) -> Ref:
        return self._const(Literal(Type("bool"), value))

    def _text(self, value: str) -> Ref:
        return self._const(_string(value))

    def _number(self, value: float, dtype: str) -> Ref:
        return self._const(Literal(Type(dtype), float(value)))


Form = Callable[[_Writer, Node], tuple[str, dict[str, Ref]]]


def _plain(writer: _Writer, node: Node) -> tuple[str, dict[str, Ref]]:
    return node.op, {}


def _conv(w: _Writer, node: Node) -> tuple[str, dict[str, Ref]]:
    return "conv", {
        "pad_type": w._text("valid"),
        "strides": w._ints((1, 1)),
        "pad": w._ints((0, 0, 0, 0)),
        "dilations": w._ints((1, 1)),
        "groups": w._int(1),
    }


def _matmul(w: _Writer, node: Node) -> tuple[str, dict[str, Ref]]:
    flags = ("transpose_x", "transpose_y")
    return "matmul", {flag: w._bool(node.attrs[flag]) for flag in flags}


def _neg(w: _Writer, node: Node) -> tuple[str, dict[str, Ref]]:
    """MIL has no `neg`; times -1 is the same, bit for bit."""
    return "mul", {"y": w._number(-1, node.dtype)}


def _rsqrt(w: _Writer, node: Node) -> tuple[str, dict[str, Ref]]:
    """Without an epsilon it is refused; MIL's default is lost in float16 and so is this one."""
    return "rsqrt", {"epsilon": w._number(0, node.dtype)}


def _reduce(w: _Writer, node: Node) -> tuple[str, dict[str, Ref]]:
    return node.op, {"axes": w._ints((node.attrs["axis"],)), "keep_dims": w._bool(True)}


def _pad(w: _Writer, node: Node) -> tuple[str, dict[str, Ref]]:
    both = zip(node.attrs["before"], node.attrs["after"], strict=True)
    return "pad", {
        "pad": w._ints([n for pair in both for n in pair]),
        "mode": w._text("constant"),
        "constant_val": w._number(0, node.dtype),
    }


def _slice(w: _Writer, node: Node) -> tuple[str, dict[str, Ref]]:
    return "slice_by_size", {key: w._ints(node.attrs[key]) for key in ("begin", "size")}


_FORMS: Mapping[str, Form] = {
    "conv1x1": _conv,
    "matmul": _matmul,
    "neg": _neg,
    "rsqrt": _rsqrt,
    "reduce_sum": _reduce,
    "reduce_mean": _reduce,
    "reduce_max": _reduce,
    "pad": _pad,
    "slice": _slice,
    "softmax": lambda w, n: ("softmax", {"axis": w._int(n.attrs["axis"])}),
    "cast": lambda w, n: ("cast", {"dtype": w._text(n.dtype)}),
    "reshape": lambda w, n: ("reshape", {"shape": w._ints(n.shape)}),
    "transpose": lambda w, n: ("transpose", {"perm": w._ints(n.attrs["perm"])}),
}


def _string(text: str) -> Literal:
    return Literal(Type("string"), text)


def _split_key(node: Node) -> tuple[object, ...]:
    return node.inputs[0], node.attrs["axis"], node.attrs["sizes"]
