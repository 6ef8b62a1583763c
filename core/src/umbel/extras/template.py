"""A jinja2 template out of a model file: rendered in a sandbox, bounded in time and memory.

A model file comes from strangers, so its template is hostile until it has ended. jinja2's
`ImmutableSandboxedEnvironment` keeps it from Python's internals, but lets it run for years or
fill the memory. Here each render has a budget, and the code that jinja2 compiles spends from
it at each statement, for each value that it makes and for each text that it puts out. There
are no signals and no watchdogs, so it holds in any thread.

Why it is enough: every value is paid for by its size as a tree, so nothing that is done with it
costs much more; what can make the product of its operands (`*`, join, replace, sort by a
default) is paid for beforehand; the few filters and methods that could still outgrow it
(`center`, `str.format`) are not offered. Not interrupted are a primitive operation that has
begun (some tenths of a second at worst) and the compilation, which only the size of the source
bounds.

Reference: jinja2 3.1 (`sandbox`, `compiler`); the helpers are those of Hugging Face's
transformers, so that the prompt is the one which the model was trained on.
"""

import functools
import json
import math
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

_NO_FILTERS = "attr batch center pprint round slice striptags sum urlencode urlize wordwrap"
_NO_METHODS = """center encode expandtabs format format_map from_bytes ljust rjust striptags
    to_bytes translate zfill"""
_GROWING = """* ** % format groupby indent join replace sort tojson strip lstrip rstrip trim
    rfind rindex rsplit rpartition"""
_ODD_FIELD = re.compile(r"%(\(|[-+ #.\d]*(\d{3}|\*))")  # wide, or by key: as often as it likes
_MADE = (nodes.List, nodes.Tuple, nodes.Dict, nodes.Compare)
_OTHER = "give a chat template of your own, or complete plain text"


class _Names(Namespace):
    """A namespace is mutable and so has no fixed weight: its content does not show as text."""

    __repr__ = object.__repr__


class _Generator(CodeGenerator):
    """Compiles a template to code that spends from its environment."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> None:
        cuts = isinstance(getattr(node, "arg", None), nodes.Slice)
        makes = (cuts or isinstance(node, _MADE)) and getattr(node, "ctx", "load") == "load"
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


def _known(name: str, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands, with iterators read where it matters how much they yield."""
    reads = name in _GROWING.split()
    return tuple([*x] if reads and isinstance(x, Iterator) else x for x in operands)


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
        filters = {**self.filters, "tojson": self._tojson}
        self.filters = {
            n: self._paid(n, filters[n]) for n in filters if n not in _NO_FILTERS.split()
        }
        self.tests = {name: self._paid(name, self.tests[name]) for name in self.tests}
        share = 1 + len(str(variables)) / INPUT
        self.left = ROOM * share
        self.deadline = time.thread_time() + SECONDS * share

    def spend(self, amount: float) -> None:
        self.left -= amount
        if not self.left >= 0 or time.thread_time() > self.deadline:  # NaN is neither
            msg = "the chat template takes more time or memory than a template may"
            raise TemplateError(msg, do=_OTHER)

    @pass_context  # which also keeps jinja2 from calling it while it compiles
    def show(self, _: Any, value: object) -> Any:
        """Every text of the output passes here."""
        return self.hold("" if value is None else str(value))

    def hold(self, value: Any) -> Any:
        """Every value that the template makes passes here."""
        self.spend(self.weigh(value))
        return value

    def weigh(self, value: Any) -> int:
        """The size of a value as a tree: printing, comparing or hashing it costs no more."""
        self.spend(1)
        if isinstance(value, int) and value.bit_length() > 60:  # more have hashes in common
            return value.bit_length() ** 2
        if isinstance(value, str) or not isinstance(value, Collection):
            return len(str(value))
        self.spend(16)
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return 1 + sum(1 + self.weigh(part) for part in parts)

    def _foresee(self, name: str, *operands: Any) -> None:
        """Pays for an operation that could make the product of its operands."""
        if name not in _GROWING.split():
            return
        sizes = [abs(x) if isinstance(x, int | float) else self.weigh(x) for x in operands]
        if name == "replace":
            sizes[0] = max(str(operands[0]).count(str(x)) for x in operands[1:])
        elif name in ("%", "format") and _ODD_FIELD.search(str(operands[0])):
            sizes[0] = math.inf
        # also what is empty counts; in this order `max` keeps what is no number
        self.spend(max(sizes[0], 1) * max(sum(sizes[1:]), 1))

    def _paid(self, name: str, function: Any) -> Any:
        hidden = 1 if hasattr(function, "jinja_pass_arg") else 0  # jinja2 puts a context first

        @functools.wraps(function)
        def paid(*args: Any, **named: Any) -> Any:
            args = _known(name, args)
            self._foresee(name, *args[hidden:], *named.values())
            return self.hold(function(*args, **named))

        return paid

    def call(self, context: Any, obj: Any, /, *args: Any, **named: Any) -> Any:
        name, text = getattr(obj, "__name__", ""), getattr(obj, "__self__", None)
        args = _known(name, args)
        self._foresee(name, text, *args)
        return self.hold(super().call(context, obj, *args, **named))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or isinstance(left, Collection) or isinstance(right, Collection):
            self._foresee(operator, left, right)
        return self.hold(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.spend(1)
        return super().getitem(obj, argument)

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
    sandbox.spend(32 * len(source))  # compiling costs more than a render does
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
