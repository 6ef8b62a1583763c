"""A jinja2 template out of a model file: rendered in a sandbox, bounded in time and memory.

A model file comes from strangers, so its template is hostile until it has ended. jinja2's
`ImmutableSandboxedEnvironment` keeps it from Python's internals, but lets it run for years or
fill the memory. Here each render has a budget, and the code that jinja2 compiles spends from
it: at each block and turn of a loop, each call, filter, test, operator, comparison, subscript
and output. There are no signals and no watchdogs, so it holds in any thread.

Why it is enough: every value is weighed when it is made, and none may weigh more than the
budget, so no operation costs more than the budget is large; operations whose result can outgrow
their operands (`*`, `**`, `%`, join, replace, indent) are estimated before they run; filters
and methods that are not known to be harmless are not offered (`center`, `format`, ...). Not
interrupted are a primitive operation that has begun (some tenths of a second at worst) and the
compilation, which only the size of the source bounds.

Reference: jinja2 3.1 (`sandbox`, `compiler`); the helpers are those of Hugging Face's
transformers, so that the prompt is the one which the model was trained on.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from datetime import datetime
from itertools import chain
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import Template
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

SECONDS = 1.0  # of this thread's processor time: a busy machine does not fail a good template
ROOM = 1 << 22  # characters and items that a render may make
SECONDS_PER_INPUT, ROOM_PER_INPUT = (
    5e-6,
    32,
)  # and what each character of its input adds to them
SOURCE_LIMIT = 1 << 16

_FILTERS = """abs capitalize count d default dictsort e escape first float format groupby indent
    int items join last length list lower map max min reject rejectattr replace reverse safe
    select selectattr sort string title trim truncate unique upper"""
_METHODS = """capitalize changed copy count cycle endswith find get index isalnum isalpha
    isdigit islower isnumeric isspace isupper items join keys lower lstrip next partition
    removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines
    startswith strip title upper values"""
_KNOWN_METHODS = frozenset(_METHODS.split())
_QUADRATIC = ("strip", "lstrip", "rstrip", "trim", "rfind", "rindex", "rsplit", "rpartition")
_SHORT = 256
_INT_BITS = 1024
_WIDE_FIELD = re.compile(r"[%.()+# -]\d{5}|%[-+ #.\d]*\*")
_CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)


class OutOfBoundsError(Exception):
    """The template wants more time or memory than it may have."""


class RefusedError(Exception):
    """The template called `raise_exception`."""


class JsonText(dict[str, Any]):
    """A JSON object that is a mapping or a text, whichever the template was written for."""

    def __init__(self, text: str, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self.text = text

    def __str__(self) -> str:
        return self.text


class _Names(Namespace):
    """A namespace is mutable and so has no fixed weight: its content does not show as text."""

    def __repr__(self) -> str:
        return "<namespace>"


def _is_slice(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)


class _Generator(CodeGenerator):
    """Compiles a template to code that spends from its environment."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.spend(1)")
        super().blockvisit(nodes, frame)

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> None:
        call = None
        if isinstance(node, nodes.Output):
            literal = sum(len(c.data) for c in node.nodes if isinstance(c, nodes.TemplateData))
            self.writeline(f"environment.spend({literal})")
        elif isinstance(node, nodes.Concat):
            call, node = "glue", nodes.Tuple(node.nodes, "load")
        elif isinstance(node, nodes.List | nodes.Dict | nodes.Compare) or _is_slice(node):
            call = "hold"
        if call:
            self.write(f"environment.{call}(")
        super().visit(node, *args, **kwargs)
        if call:
            self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        opening, closing = ("environment.hold(", ")") if node.ctx == "load" else ("", "")
        self.write(opening)
        super().visit_Tuple(node, frame)
        self.write(closing)


class _Generation(Extension):
    """`{% generation %}` marks for training what the model said: here only its body counts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context  # which also keeps jinja2 from calling it while it compiles
def _finalize(context: Context, value: object) -> str:
    sandbox: Any = context.environment
    return str(sandbox.hold("" if value is None else str(value)))


def _raise_exception(message: object) -> None:
    raise RefusedError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern[:_SHORT])


def _size(value: object) -> float:
    if isinstance(value, int | float):
        return abs(value)
    return len(value) if isinstance(value, (str, range, *_CONTAINERS)) else 1


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one render: cheap to make, so no two threads share one."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, variables: Mapping[str, Any]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # or constants would be computed while it compiles
            finalize=_finalize,
            extensions=(_Generation, "jinja2.ext.loopcontrols"),
        )
        filters: dict[str, Any] = {name: self.filters[name] for name in _FILTERS.split()}
        filters["tojson"] = self._tojson
        tests: dict[str, Any] = self.tests
        self.filters = {name: self._guarded(name, filters[name]) for name in filters}
        self.tests = {name: self._guarded(name, tests[name]) for name in tests}
        del self.globals["lipsum"]
        self.globals["namespace"] = _Names
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.weights: dict[
            int, tuple[object, int]
        ] = {}  # keeps the objects: an id stays theirs
        self.left = self.most = self.deadline = float("inf")
        given = self.weigh(dict(variables))
        self.left = self.most = ROOM + ROOM_PER_INPUT * given
        self.deadline = time.thread_time() + SECONDS + SECONDS_PER_INPUT * given

    def spend(self, amount: float) -> None:
        self.left -= amount
        if self.left < 0 or time.thread_time() > self.deadline:
            raise OutOfBoundsError

    def weigh(self, value: Any) -> int:
        """The size of a value as a tree: printing, comparing or hashing it costs no more."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, int) and value.bit_length() > _INT_BITS:
            raise OutOfBoundsError
        if not isinstance(value, _CONTAINERS):
            return 1
        if id(value) not in self.weights:
            self.weights[id(value)] = (value, self._weigh_container(value))
        return self.weights[id(value)][1]

    def _weigh_container(self, value: Any) -> int:
        mapping = getattr(value, "mapping", value)  # that of a view
        parts = chain(mapping.keys(), mapping.values()) if hasattr(mapping, "keys") else value
        weight = 8 + (len(value.text) if isinstance(value, JsonText) else 0)
        fresh = 32 + 4 * len(value)
        for part in parts:
            weight += 1 + self.weigh(part)
            fresh += len(part) if isinstance(part, str) else 0
            if weight > self.most:
                raise OutOfBoundsError
        self.spend(fresh)
        return weight

    def hold(self, value: Any) -> Any:
        """Every value that the template makes passes here."""
        weight = self.weigh(value)
        self.spend(1 + weight if isinstance(value, str) else 1)
        return value

    def glue(self, parts: tuple[object, ...]) -> Any:
        return self.hold("".join(map(str, parts)))

    def _estimate(self, name: str, first: Any, *others: Any) -> float:
        """What an operation may make beyond its operands."""
        if name in ("join", "indent", "*"):
            return _size(first) * sum(map(_size, others))
        if name == "replace":
            old, new = map(str, others[:2])
            return str(first).count(old) * len(new)
        if name == "format":
            fields = str(first).count("%") * (10_000 + sum(map(self.weigh, others)))
            return float("inf") if _WIDE_FIELD.search(str(first)) else fields
        quadratic = name in _QUADRATIC and any(_size(other) > _SHORT for other in others)
        return float("inf") if quadratic else 0

    def _foresee(self, name: str, args: tuple[Any, ...], named: Any) -> tuple[Any, ...]:
        if name == "join":  # nobody knows yet how much a generator yields
            args = tuple(self.hold(list(a)) if isinstance(a, Iterator) else a for a in args)
        self.spend(1)
        if self._estimate(name, *args, *named.values()) > self.left:
            raise OutOfBoundsError
        return args

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        hidden = 1 if hasattr(function, "jinja_pass_arg") else 0  # jinja2 puts a context first

        @functools.wraps(function)
        def guarded(*args: Any, **named: Any) -> Any:
            seen = self._foresee(name, args[hidden:], named)
            return self.hold(function(*args[:hidden], *seen, **named))

        return guarded

    def call(self, context: Context, obj: Any, /, *args: Any, **named: Any) -> Any:
        if isinstance(obj, BuiltinMethodType):
            args = self._foresee(obj.__name__, (obj.__self__, *args), named)[1:]
        return self.hold(super().call(context, obj, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            self._foresee("format", (left, right), {})
        elif operator == "*" and not (
            isinstance(left, int | float) and isinstance(right, int | float)
        ):
            self._foresee("*", (left, right), {})
        elif (
            operator == "**" and isinstance(left, int) and right * left.bit_length() > _INT_BITS
        ):
            raise OutOfBoundsError
        elif operator == "+" and (isinstance(left, str) or isinstance(right, str)):
            left, right = (str(x) if isinstance(x, JsonText) else x for x in (left, right))
        return self.hold(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.spend(1)  # hashing the key may be work, and so may a filter over an attribute
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        known = attr in _KNOWN_METHODS or not isinstance(value, BuiltinMethodType | MethodType)
        return known and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` is a method like others, and not one of the known ones."""

    def _tojson(self, value: object, ensure_ascii: bool = False, **options: Any) -> str:
        if _size(options.get("indent") or 0) > _SHORT:
            raise OutOfBoundsError
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, **options)
        return "".join(map(self.hold, encoder.iterencode(value)))


def compile_source(source: str) -> CodeType:
    """Compile a template; what is wrong with it comes out as jinja2's or Python's own error."""
    if len(source) > SOURCE_LIMIT:
        msg = f"a source of {len(source)} characters"
        raise OutOfBoundsError(msg)
    code: Any = Sandbox({}).compile(source)
    return code  # type: ignore[no-any-return]


def render(code: CodeType, variables: Mapping[str, Any]) -> str:
    """Run a compiled template on variables of plain JSON types."""
    sandbox = Sandbox(variables)
    template = Template.from_code(sandbox, code, sandbox.make_globals(None))
    return "".join(template.root_render_func(template.new_context(dict(variables))))
