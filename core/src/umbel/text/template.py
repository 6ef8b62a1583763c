"""A jinja2 template out of a model file: rendered in a sandbox, bounded in time and memory.

A model file comes from strangers, so its template is hostile until it has ended. jinja2's
`ImmutableSandboxedEnvironment` keeps it from Python's internals, but lets it run for years or
fill the memory. Here each render has a budget, and the code that jinja2 compiles spends from
it at each statement, for each value that it makes and for each text that it puts out. There
are no signals and no watchdogs, so it holds in any thread.

Why it is enough: no value weighs more than what is left of the budget, so nothing that is
done with it costs much more; what can make the product of its operands (`*`, join, replace)
is refused beforehand if that product is too large; the few filters and methods that could
still outgrow it (`center`, `str.format`) are not offered. Not interrupted are a primitive
operation that has begun (some tenths of a second at worst) and the compilation, which only the
size of the source bounds.

Reference: jinja2 3.1 (`sandbox`, `compiler`); the helpers are those of Hugging Face's
transformers, so that the prompt is the one which the model was trained on.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from umbel.errors import TemplateError

SECONDS = 1.0  # of this thread's processor time: a busy machine does not fail a good template
ROOM = 1 << 21  # characters and items that a render may make
INPUT = 1 << 16  # each time that its input has so many characters, it may have both once more

_NO_FILTERS = "attr batch center pprint round slice striptags sum urlize wordwrap"
_NO_METHODS = """center encode expandtabs format format_map from_bytes ljust rjust striptags
    to_bytes translate zfill"""
_GROWING = """* ** % format indent join replace tojson strip lstrip rstrip trim rfind rindex
    rsplit rpartition"""
_ODD_FIELD = re.compile(r"%(\(|[-+ #.\d]*(\d{3}|\*))")  # wide, or by key: as often as it likes
_MADE = (nodes.List, nodes.Tuple, nodes.Dict, nodes.Getitem, nodes.Concat, nodes.Compare)
_OTHER = "give a chat template of your own, or complete plain text"


class _Names(Namespace):
    """A namespace is mutable and so has no fixed weight: its content does not show as text."""

    __repr__ = object.__repr__


class _Generator(CodeGenerator):
    """Compiles a template to code that spends from its environment."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> None:
        makes = isinstance(node, _MADE) and getattr(node, "ctx", "load") == "load"
        if isinstance(node, nodes.Stmt):
            self.writeline("environment.spend(1)")
        if makes:
            self.write("environment.hold(")
        super().visit(node, *args, **kwargs)
        if makes:
            self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("str_join(")
        self.visit(nodes.Tuple(node.nodes, "load"), frame)
        self.write(")")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.show(context, {super()._output_const_repr(group)})"


class _Generation(Extension):
    """`{% generation %}` marks for training what the model said: here only its body counts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> None:
    msg = f"the chat template refuses the messages: {message}"
    raise TemplateError(msg, do="change the messages as it says")


def _strftime_now(pattern: str) -> str:
    return time.strftime(pattern[:256])


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one render: cheap to make, so no two threads share one."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, variables: Mapping[str, Any]) -> None:
        # not optimized, or constants would be computed while it compiles
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False)
        self.add_extension(_Generation)
        self.add_extension("jinja2.ext.loopcontrols")
        self.finalize = self.show
        self.globals["namespace"] = _Names
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]
        for name in _NO_FILTERS.split():
            del self.filters[name]
        self.filters["tojson"] = self._tojson
        for table in (self.filters, self.tests):
            table.update({name: self._guarded(name, table[name]) for name in table})
        share = 1 + len(str(variables)) / INPUT
        self.left = ROOM * share
        self.deadline = time.thread_time() + SECONDS * share
        # keeps the objects, so that an id stays theirs
        self.weights: dict[int, tuple[object, int]] = {}

    def check(self, amount: float) -> None:
        if amount > self.left or time.thread_time() > self.deadline:
            msg = "the chat template takes more time or memory than a template may"
            raise TemplateError(msg, do=_OTHER)

    def spend(self, amount: int) -> None:
        self.check(amount)
        self.left -= amount

    @pass_context  # which also keeps jinja2 from calling it while it compiles
    def show(self, _: Any, value: object) -> str:
        """Every text of the output passes here."""
        text = "" if value is None else str(value)
        self.spend(len(text))
        return text

    def hold(self, value: Any) -> Any:
        """Every value that the template makes passes here."""
        self.weigh(value)
        return value

    def weigh(self, value: Any) -> int:
        """The size of a value as a tree: printing, comparing or hashing it costs no more."""
        self.spend(1)
        if isinstance(value, int) and value.bit_length() > 60:  # more have hashes in common
            self.check(float("inf"))
        if not isinstance(value, Collection):
            return len(str(value))
        if id(value) not in self.weights:
            self.spend(16 + len(value))
            parts = [*value, *value.values()] if isinstance(value, dict) else value
            is_text = isinstance(value, str)
            weight = len(value) if is_text else 1 + sum(1 + self.weigh(p) for p in parts)
            self.check(weight)
            self.weights[id(value)] = (value, weight)
        return self.weights[id(value)][1]

    def _foresee(self, name: str, operands: list[Any]) -> list[Any]:
        """The operands of an operation, refused if it could make too much of them."""
        if name not in _GROWING.split():
            return operands
        # nobody knows yet how much an iterator yields
        known = [list(x) if isinstance(x, Iterator) else x for x in operands]
        sizes = [abs(x) if isinstance(x, int | float) else self.weigh(x) for x in known]
        if name == "replace":
            sizes[0] = max(str(known[0]).count(str(x)) for x in known[1:])
        elif name in ("%", "format") and _ODD_FIELD.search(str(known[0])):
            self.check(float("inf"))
        self.check(sizes[0] * sum(sizes[1:]))
        return known

    def _guarded(self, name: str, function: Any) -> Any:
        hidden = 1 if hasattr(function, "jinja_pass_arg") else 0  # jinja2 puts a context first

        @functools.wraps(function)
        def guarded(*args: Any, **named: Any) -> Any:
            known = self._foresee(name, [*args[hidden:], *named.values()])
            given = known[: len(args) - hidden]
            return self.hold(function(*args[:hidden], *given, **named))

        return guarded

    def call(self, context: Any, obj: Any, /, *args: Any, **named: Any) -> Any:
        text = getattr(obj, "__self__", None)
        if isinstance(text, str):
            args = tuple(self._foresee(obj.__name__, [text, *args])[1:])
        return self.hold(super().call(context, obj, *args, **named))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or isinstance(left, Collection) or isinstance(right, Collection):
            self._foresee(operator, [left, right])
        return self.hold(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return self.hold(super().getitem(obj, argument))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _NO_METHODS.split() and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` is a method like others, and not one that is offered."""

    def _tojson(self, value: object, ensure_ascii: bool = False, **options: Any) -> str:
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, **options)
        return "".join(map(self.hold, encoder.iterencode(value)))


@functools.lru_cache(8)
def _compiled(source: str) -> Any:
    sandbox = Sandbox({})
    sandbox.check(32 * len(source))  # compiling costs more than a render does
    return sandbox.compile(source)


def render(source: str, variables: Mapping[str, Any], where: str | None) -> str:
    """Run a template on variables of plain JSON types."""
    try:
        code, sandbox = _compiled(source), Sandbox(variables)
        template = Template.from_code(sandbox, code, sandbox.make_globals(None))
        return template.render(variables)
    except TemplateError as error:
        error.where = where
        raise
    except Exception as error:  # it is a stranger's code: anything may come out
        msg = "the chat template cannot be rendered"
        got = f"{type(error).__name__}: {str(error)[:300]}"
        raise TemplateError(msg, where=where, got=got, do=_OTHER) from error
