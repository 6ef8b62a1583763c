"""What was tried, kept for the next time: one file for each chip and toolkit.

It is found again by all that decides what works: the chip, the version and folder of CANN, its
libraries and kernels, the driver, and what is tried. A file that is broken counts as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
from umbel.errors import DeviceError

from umbel_cann.acl import LIBRARIES
from umbel_cann.acl.toolkit import Toolkit
from umbel_cann.probing import parent
from umbel_cann.probing.cases import probes
from umbel_cann.probing.parent import Verdicts

log = logging.getLogger("umbel")

_SOURCES = (
    "cases.py",
    "maker.py",
    "special.py",
    "trial.py",
)  # a change of them is a reason to try again
_DRIVER = Path("/usr/local/Ascend/driver/version.info")


@attrs.frozen
class Tried:
    """A chip that was tried out with a toolkit."""

    soc: str
    cann: str
    verdicts: Verdicts

    @property
    def told(self) -> str:
        works = sum(why is None for why in self.verdicts.values())
        return f"{works} of {len(self.verdicts)} probes work"

    def save(self, toolkit: Toolkit) -> None:
        """Whole or not at all; where it cannot be, a note says so."""
        path = folder() / _name(self.soc, toolkit)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            number, beside = tempfile.mkstemp(dir=path.parent, suffix=".new")
            try:
                with os.fdopen(number, "w") as file:
                    json.dump(attrs.asdict(self), file, indent=1)
                os.replace(beside, path)
            except BaseException:
                os.unlink(beside)
                raise
        except OSError as error:
            told = "what %s can do cannot be kept (%s): it is tried each time; "
            told += "set XDG_CACHE_HOME to a folder that can be written to"
            log.warning(told, self.soc, error)


def folder() -> Path:
    """Where the files are."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "umbel" / "cann"


def tried(toolkit: Toolkit, index: int, soc: str) -> Tried | None:
    """From its file, or by trying; None, and a line that says so, where that cannot be done."""
    if found := _load(folder() / _name(soc, toolkit)):
        return found
    log.warning("trying out what an %s can do with this CANN: this happens once", soc)
    try:
        return fresh(toolkit, index)
    except DeviceError as error:
        more = f" ({error.got})" if error.got else ""
        told = "%s%s: what is known of such chips is assumed; `umbel cann probe` tries again"
        log.warning(told, error.what, more)
        return None


def fresh(toolkit: Toolkit, index: int, *, limit: float = parent.LIMIT) -> Tried:
    """By trying, whatever is known already; kept for the next time."""
    tries = parent.run(toolkit, index, limit=limit)
    found = Tried(tries.soc, toolkit.version, tries.verdicts)
    found.save(toolkit)
    return found


def known(toolkit: Toolkit) -> list[Tried]:
    """The chips that were tried with a toolkit as it is now."""
    paths = sorted(folder().glob(_name("*", toolkit)))
    return [found for path in paths if (found := _load(path))]


def _name(soc: str, toolkit: Toolkit) -> str:
    return f"{soc}-{_stamp(toolkit)}.json"


def _stamp(toolkit: Toolkit) -> str:
    """The same as long as nothing has changed that decides what works."""
    digest = hashlib.sha256(f"{toolkit.root.resolve()} {toolkit.version}".encode())
    for name in _SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    for path in _parts(toolkit):
        with contextlib.suppress(OSError):
            told = path.stat()
            digest.update(f"{path} {told.st_size} {told.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _parts(toolkit: Toolkit) -> Iterator[Path]:
    yield from (path for name in LIBRARIES if (path := toolkit.library(name)))
    yield from toolkit.kernels()
    yield _DRIVER


def _load(path: Path) -> Tried | None:
    try:
        told = json.loads(path.read_text())
        soc, cann, verdicts = told["soc"], told["cann"], told["verdicts"]
        reasons = list(verdicts.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    texts = isinstance(soc, str) and isinstance(cann, str)
    if not texts or not all(isinstance(r, str | None) for r in reasons):
        return None
    if set(verdicts) != {probe.name for probe in probes()}:
        return None
    return Tried(soc, cann, verdicts)
