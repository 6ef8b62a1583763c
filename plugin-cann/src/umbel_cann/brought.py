"""Kernels that other distributions have brought: which of them computes a node, or why none.

What is wrong with one becomes an error that names it; C would not notice wrong arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points

import attrs
from umbel.errors import DeviceError, OutOfMemoryError, PluginError, UmbelError
from umbel.graph import Tensor
from umbel.hookspecs import GROUP, Kernel

from umbel_cann.acl import Acl
from umbel_cann.chips import Chip
from umbel_cann.kernels import NpuKernel
from umbel_cann.lowering import Lowering, Missing
from umbel_cann.program import Call
from umbel_cann.states import IDS
from umbel_cann.views import Numbers, Scalar, Unsupported, View, Views

log = logging.getLogger("umbel")

_DO = "mend, update or uninstall that distribution"
_POINTERS: Mapping[str, type] = {"T": View, "S": Scalar, "A": Numbers, "L": Views, "s": bytes}
_VALUES: Mapping[str, tuple[type, ...]] = {"b": (bool,), "f": (int, float), "d": (int, float)}


@attrs.frozen(eq=False)
class Foreign:
    """One kernel, and who brought it."""

    operation: str
    supported: Callable[[Tensor], object]  # a reason, or None
    kernel: NpuKernel
    origin: str
    letters: Mapping[str, str]  # of the arguments of all operators

    @property
    def title(self) -> str:
        return f"the kernel for {self.operation} of {self.origin}"

    def refuses(self, node: Tensor, chip: Chip, missing: Missing) -> str | None:
        """Why it does not take a node, or None; raises what is wrong with it."""
        try:
            with self._named(node):
                why = self.supported(node)
                if not isinstance(why, (str, type(None))):
                    msg = f"`supported` gave {why!r:.60}, expected None or a reason"
                    raise TypeError(msg)
            if why is None:
                self.lower(Lowering(chip, missing), node)
        except Unsupported as reason:
            return str(reason)
        return why

    def lower(self, to: Lowering, node: Tensor, now: int = 0) -> None:
        """Adds the launches of a node, the `now`th of its split."""
        to.begin(node, now)
        to.raw = False
        before = len(to.launches)
        with self._named(node):
            try:
                self.kernel.lower(to, node)
            except Unsupported as reason:
                if to.slots is None:
                    raise
                msg = f"it takes a node no more that it took when asked: {reason}"
                raise ValueError(msg) from reason
            if len(to.launches) == before:
                msg = "it launched nothing"
                raise ValueError(msg)
            for launch in to.launches[before:]:
                if isinstance(launch, Call):
                    _check(launch, self.letters[launch.operator])
                    launch.by = self.title

    @contextmanager
    def _named(self, node: Tensor) -> Iterator[None]:
        try:
            yield
        except (Unsupported, OutOfMemoryError):
            raise
        except Exception as error:
            told = error.what if isinstance(error, UmbelError) else str(error)
            what = f"{type(error).__name__}: {' '.join(told.split())}"
            msg = f"the kernel for {self.operation} of {self.origin} failed: {what}"
            raise DeviceError(msg, where=node.label, do=_DO) from error


def _check(call: Call, letters: str) -> None:
    """Raises what is wrong with the arguments of a launch."""
    name, given = f"aclnn{call.operator}", call.arguments
    if len(given) != len(letters):
        msg = f"{name} takes {len(letters)} arguments ({letters}), not {len(given)}"
        raise TypeError(msg)
    for i, (letter, value) in enumerate(zip(letters, given, strict=True), 1):
        pointer = _POINTERS.get(letter)
        kinds = (pointer, type(None)) if pointer else _VALUES.get(letter, (int,))
        if not isinstance(value, kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            msg = f"argument {i} of {name} is {value!r:.60}, expected {expected}"
            raise TypeError(msg)


@attrs.frozen(eq=False)
class Brought:
    """All that were brought for one NPU, by operation."""

    kernels: Mapping[str, Sequence[Foreign]] = attrs.field(factory=dict)
    _told: set[str] = attrs.field(factory=set, init=False)

    @classmethod
    def new(cls, kernels: Sequence[Kernel], acl: Acl) -> Brought:
        """Makes their operators known; a `PluginError` for what cannot be a kernel."""
        found: dict[str, list[Foreign]] = {}
        for given in kernels:
            origin = _origin(given)
            if not isinstance(given.run, NpuKernel):
                msg = f"{origin} brings a kernel for {given.operation} that is none for an NPU"
                expected = "umbel_cann.kernels.NpuKernel"
                raise PluginError(msg, expected=expected, got=f"{given.run!r:.100}", do=_DO)
            one = Foreign(given.operation, given.supported, given.run, origin, acl.operators)
            try:
                acl.bring(given.run.operators, given.run.library)
            except PluginError as error:
                error.where = one.title
                raise
            found.setdefault(given.operation, []).append(one)
        return cls(found)

    def choose(
        self, node: Tensor, chip: Chip, missing: Missing
    ) -> tuple[Foreign | None, list[str]]:
        """The first that takes a node, and why those before it do not."""
        assert node.op is not None
        op, reasons = node.op, list[str]()
        several = self.kernels.get(op.name, ())
        if several and (op.writes or op.mutates) and op.name not in IDS:
            return None, ["it is not known which rows of its state it writes"]
        for one in several if all(t.size for t in node.inputs) else ():
            why = one.refuses(node, chip, missing)
            if why is None:
                return one, reasons
            reasons.append(f"{one.title}: {why}")
            if one.title not in self._told:
                self._told.add(one.title)
                text = "the kernel for %s of %s does not take %s: %s"
                log.warning(text, one.operation, one.origin, node.label, why)
        return None, reasons

    @property
    def every(self) -> list[Foreign]:
        return [one for several in self.kernels.values() for one in several]


def _origin(kernel: Kernel) -> str:
    """The distribution that a kernel is of, or the module, as its functions tell it."""
    functions = (getattr(kernel.run, "lower", kernel.run), kernel.supported)
    modules = [str(getattr(f, "__module__", type(f).__module__)) for f in functions]
    packages = {module.partition(".")[0] for module in modules}
    for entry in entry_points(group=GROUP):
        if entry.dist is not None and entry.module.partition(".")[0] in packages:
            return f"{entry.dist.name} {entry.dist.version}"
    return modules[0]
