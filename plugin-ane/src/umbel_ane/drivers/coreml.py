"""The Neural Engine through Core ML, which is public: a program is a package.

Compiling is to build the package, on any system. It is kept in a folder under a name made of
the text and the weights, so that it is there at the next start. Core ML chooses where an
operation runs: `CPU_AND_NE` permits the Neural Engine and does not promise it. Loading needs
macOS.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from umbel_ane import profile
from umbel_ane.coreml import CoremlError, tools
from umbel_ane.coreml.export import SUFFIX, Source, export
from umbel_ane.drivers import QOS, AneError, Attributes, ChipInfo, Descriptor, Request
from umbel_ane.mil.blob import BlobError
from umbel_ane.mil.literals import KINDS
from umbel_ane.mil.parse import MilError, parse
from umbel_ane.mil.program import Type, Value
from umbel_ane.profile import Profile

DOMAIN = "com.apple.CoreML"

# What opens a package: its `predict` takes and gives arrays by name.
OpenPackage = Callable[[Path], Any]


def open_package(path: Path) -> Any:
    """Core ML's model of a package, on macOS."""
    if platform.system() != "Darwin":
        msg = "Core ML runs programs on macOS only"
        do = "build and inspect packages here, and run them on a Mac"
        raise AneError(msg, domain=DOMAIN, text=f"this is {platform.system()}", do=do)
    ct = tools()
    return ct.models.MLModel(str(path), compute_units=ct.ComputeUnit.CPU_AND_NE)


class CoremlSurface:
    """Plain memory: `predict` copies what it gets."""

    def __init__(self, nbytes: int) -> None:
        self._memory: np.ndarray | None = np.zeros(nbytes, np.uint8)
        self.nbytes = nbytes

    @contextlib.contextmanager
    def lock(self, *, read_only: bool = False) -> Iterator[np.ndarray]:
        if self._memory is None:
            msg = "a surface is used after its release"
            raise AneError(msg, domain=DOMAIN)
        view = self._memory.view()
        view.flags.writeable = not read_only
        yield view

    def release(self) -> None:
        self._memory = None


@attrs.frozen(eq=False)
class CoremlDescriptor:
    text: bytes
    weights: Mapping[str, bytes | memoryview]
    hex_id: str


class CoremlModel:
    """One program, as a package."""

    def __init__(self, driver: CoremlDriver, descriptor: CoremlDescriptor) -> None:
        self.driver = driver
        self.descriptor = descriptor
        try:
            program = parse(descriptor.text)
        except MilError as error:
            raise AneError(
                error.what, domain=DOMAIN, where=error.where, text=str(error)
            ) from None
        self.source = Source(program, descriptor.weights)
        main = program.main
        types = main.types()
        if not types.keys() >= set(main.outputs):
            msg = "an output of a program is not defined"
            raise AneError(msg, domain=DOMAIN, where=", ".join(main.outputs))
        self.inputs = sorted(main.inputs, key=lambda value: value.name)
        self.outputs = [Value(name, types[name]) for name in sorted(main.outputs)]
        self._opened: Any = None

    @property
    def hex_id(self) -> str:
        return self.descriptor.hex_id

    @property
    def package(self) -> Path:
        return self.driver.folder / f"{self.hex_id}{SUFFIX}"

    def compiled_exists(self) -> bool:
        return self.package.is_dir()

    def compile(self, qos: int = QOS) -> None:
        try:
            export(self.source, self.package)
        except (CoremlError, BlobError) as error:
            raise AneError(
                error.what, domain=DOMAIN, where=error.where, text=str(error)
            ) from error
        except OSError as error:
            msg, do = "a program cannot be kept", "set XDG_CACHE_HOME to a folder with room"
            raise AneError(
                msg, domain=DOMAIN, where=self.package, text=str(error), do=do
            ) from error
        self.driver.compiles += 1

    def load(self, qos: int = QOS) -> None:
        if not self.compiled_exists():
            msg = "a program is loaded before it is compiled"
            raise AneError(msg, domain=DOMAIN, where=self.package, do="call compile first")
        try:
            self._opened = self.driver.open_package(self.package)
        except (CoremlError, RuntimeError, OSError) as error:
            msg = "Core ML cannot load a program"
            raise _failed(msg, error, self.package) from error

    def evaluate(self, request: Request, qos: int = QOS) -> None:
        if self._opened is None:
            msg = "a program is run before it is loaded"
            raise AneError(msg, domain=DOMAIN, where=self.hex_id)
        given = [len(request.inputs), len(request.outputs)]
        if given != [len(self.inputs), len(self.outputs)]:
            msg = "a program is run with another number of surfaces"
            text = f"{len(self.inputs)} inputs and {len(self.outputs)} outputs, got {given}"
            raise AneError(msg, domain=DOMAIN, where=self.hex_id, text=text)
        arrays = {}
        for value, surface in zip(self.inputs, request.inputs, strict=True):
            with surface.lock(read_only=True) as memory:
                arrays[value.name] = _seen(memory, value).copy()
        try:
            results = self._opened.predict(arrays)
        except (RuntimeError, ValueError) as error:
            msg = "Core ML cannot run a program"
            raise _failed(msg, error, self.hex_id) from error
        for value, surface in zip(self.outputs, request.outputs, strict=True):
            with surface.lock() as memory:
                _seen(memory, value)[...] = results[value.name]

    def unload(self, qos: int = QOS) -> None:
        self._opened = None

    def rewrite(self, path: str, data: bytes) -> None:
        msg = "Core ML keeps the weights in its package"
        raise AneError(msg, domain=DOMAIN, where=path, do="compile the program anew")

    def attributes(self) -> Attributes:
        names = [tuple(value.name for value in side) for side in (self.inputs, self.outputs)]
        return Attributes(*names)

    def purge(self) -> None:
        shutil.rmtree(self.package, ignore_errors=True)

    def release(self) -> None:
        self.unload()


class CoremlDriver:
    """`folder` keeps the packages; `open_package` can be another for tests."""

    name = "Core ML"
    simulated = False

    def __init__(self, folder: Path | None = None, opener: OpenPackage = open_package) -> None:
        self.folder = folder or default_folder()
        self.open_package = opener
        self.compiles = 0
        self.profile: Profile = attrs.evolve(
            profile.load("permissive"),
            name="coreml",
            description="Core ML, which runs elsewhere what the Neural Engine does not take",
            binding="sorted",
            reload="snapshot",
            live_outputs=True,
        )

    def info(self) -> ChipInfo:
        return ChipInfo(architecture=platform.machine(), engines=1, cores=0, system=_system())

    def descriptor(
        self, text: bytes, weights: Mapping[str, bytes | memoryview]
    ) -> CoremlDescriptor:
        return CoremlDescriptor(text, weights, _hash(text, weights))

    def model(self, descriptor: Descriptor) -> CoremlModel:
        if not isinstance(descriptor, CoremlDescriptor):
            msg = "a descriptor is of another driver"
            raise AneError(msg, domain=DOMAIN, where=descriptor.hex_id)
        return CoremlModel(self, descriptor)

    def surface(self, nbytes: int) -> CoremlSurface:
        return CoremlSurface(nbytes)

    def cached(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob(f"*{SUFFIX}"))

    def clear(self) -> int:
        names = self.cached()
        for name in names:
            shutil.rmtree(self.folder / f"{name}{SUFFIX}", ignore_errors=True)
        return len(names)

    def status(self) -> dict[str, object]:
        return {
            "driver": self.name,
            "packages": len(self.cached()),
            "folder": str(self.folder),
            "compiles": self.compiles,
        }

    def close(self) -> None:
        """Packages stay."""


def default_folder() -> Path:
    """Where packages are kept: the user's cache."""
    usual = "Library/Caches" if platform.system() == "Darwin" else ".cache"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / usual
    return Path(base) / "umbel" / "ane-coreml"


def _failed(what: str, error: Exception, where: object) -> AneError:
    return AneError(what, domain=DOMAIN, where=where, text=str(error))


def _seen(memory: np.ndarray, value: Value) -> np.ndarray:
    """The values of an input or output in its surface: packed from byte 0."""
    shape = _shape(value.type)
    kind = KINDS[value.type.dtype].numpy
    nbytes = int(np.prod(shape)) * kind.itemsize
    if memory.nbytes < nbytes:
        msg = "a surface is smaller than what it carries"
        text = f"{nbytes} bytes are needed, there are {memory.nbytes}"
        raise AneError(msg, domain=DOMAIN, where=value.name, text=text)
    return memory[:nbytes].view(kind).reshape(shape)


def _shape(kind: Type) -> tuple[int, ...]:
    return tuple(d or 1 for d in kind.dims or ())


def _hash(text: bytes, weights: Mapping[str, bytes | memoryview]) -> str:
    """Of the text and of every weight: what differs has another package."""
    found = hashlib.sha256(text)
    for path in sorted(weights):
        found.update(f"\0{path}\0{len(weights[path])}\0".encode())
        found.update(weights[path])
    return found.hexdigest()


def _system() -> str:
    version = platform.mac_ver()[0]
    return f"macOS {version}" if version else platform.system()
