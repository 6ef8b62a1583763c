"""What the plugin asks of whoever runs programs: Apple's private API, Core ML, a simulator.

The calls are those of `_ANEInMemoryModel` and its friends, in Python's terms. A model's life is
descriptor -> model -> compile (or `compiled_exists`) -> load -> evaluate ... -> unload ->
release. Every failure is one `AneError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import attrs
import numpy as np
from umbel.errors import DeviceError

from umbel_ane.profile import Profile

QOS = 21  # what everybody passes; 0 to 63 made no difference on an M5


class AneError(DeviceError):
    """A call failed; `domain`, `code` and `text` are what the system said of it."""

    def __init__(
        self,
        what: str,
        *,
        domain: str = "com.apple.appleneuralengine",
        code: int = 0,
        text: str = "",
        where: object = None,
        do: str | None = None,
    ) -> None:
        got = f"{domain} code {code:#x}: {text}" if text or code else None
        super().__init__(what, where=where, got=got, do=do)
        self.domain, self.code, self.text = domain, code, text


@attrs.frozen
class ChipInfo:
    """What `_ANEDeviceInfo` tells."""

    architecture: str  # h16g: M4
    engines: int
    cores: int
    board: int = 0
    sub_type: str = ""
    system: str = ""  # macOS 15.3


class Surface(Protocol):
    """An IOSurface of `nbytes`, or memory like one; never moved while it lives."""

    @property
    def nbytes(self) -> int: ...

    def lock(self, *, read_only: bool = False) -> AbstractContextManager[np.ndarray]:
        """Its memory (uint8), for as long as the context lasts."""

    def release(self) -> None: ...


class Descriptor(Protocol):
    """A program's text and weights, before anything is made of them."""

    @property
    def hex_id(self) -> str: ...


class Model(Protocol):
    """One program. `compile` and `load` raise `AneError`."""

    @property
    def hex_id(self) -> str: ...

    def compiled_exists(self) -> bool:
        """Whether the system has it compiled: then `load` is enough."""

    def compile(self, qos: int = QOS) -> None: ...

    def load(self, qos: int = QOS) -> None: ...

    def evaluate(self, request: Request, qos: int = QOS) -> None:
        """Waits for the result."""

    def unload(self, qos: int = QOS) -> None: ...

    def rewrite(self, path: str, data: bytes) -> None:
        """Overwrites a staged weight file; whether a later `load` heeds it is the rung of a
        ladder that `runtime` tries."""

    def attributes(self) -> Attributes:
        """Of a loaded model: the order in which surfaces are bound."""

    def purge(self) -> None:
        """Drops what the system has compiled for it."""

    def release(self) -> None:
        """Unloads, and removes what was staged; may be called twice."""


@attrs.frozen
class Attributes:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@attrs.frozen(eq=False)
class Request:
    """Surfaces for one evaluation, in the order of `Attributes`."""

    inputs: Sequence[Surface]
    outputs: Sequence[Surface]
    procedure: int = 0


class Driver(Protocol):
    """One way to the Neural Engine, for this process."""

    @property
    def name(self) -> str:
        """private API, Core ML, simulator"""

    @property
    def simulated(self) -> bool: ...

    @property
    def profile(self) -> Profile: ...

    @property
    def compiles(self) -> int:
        """Compiles of this process so far, those of other devices too."""

    def info(self) -> ChipInfo: ...

    def descriptor(self, text: bytes, weights: Mapping[str, bytes | memoryview]) -> Descriptor:
        """Of MIL text, and the contents of each weight file by its path in the text."""

    def model(self, descriptor: Descriptor) -> Model: ...

    def surface(self, nbytes: int) -> Surface: ...

    def cached(self) -> Sequence[str]:
        """Identifiers of what this user has compiled and staged, where the driver can tell."""

    def clear(self) -> int:
        """Drops all of that; how many there were."""

    def status(self) -> Mapping[str, object]:
        """What there is to say of it: of the simulator its virtual clock and counters."""

    def close(self) -> None: ...
