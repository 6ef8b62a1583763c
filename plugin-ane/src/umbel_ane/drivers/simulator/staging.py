"""The folder in which a program's text and weight files lie for the system to read.

It is <temporary directory>/<identifier>, as the real driver has it (but one root for each
process, so that nobody clears away what another process uses). Programs with one identifier
share a folder; it goes with the last of them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath

import attrs

from umbel_ane.drivers.simulator import errors
from umbel_ane.drivers.simulator.store import TEXT, mapped

PREFIX = "@model_path/"
_owners: Counter[Path] = Counter()


def folder(hex_id: str) -> Path:
    return Path(tempfile.gettempdir()) / f"umbel-ane-simulator-{os.getpid()}" / hex_id


@cache
def _swept_at_exit(root: Path) -> None:
    """Nothing of a process stays, even if nobody released what it staged."""
    atexit.register(shutil.rmtree, root, ignore_errors=True)


@attrs.define(eq=False)
class Staged:
    """One owner's part in a folder."""

    folder: Path
    owns: bool = False

    def file(self, path: str) -> Path:
        """Of a path in the text; what would lie outside of the folder is refused."""
        name = PurePosixPath(path.removeprefix(PREFIX))
        if not path.startswith(PREFIX) or name.is_absolute() or ".." in name.parts:
            msg = "a weight file would not lie in the program's folder"
            raise errors.invalid(msg, path, f"paths begin with {PREFIX}")
        return self.folder / name

    def write(self, text: bytes, weights: Mapping[str, bytes | memoryview]) -> None:
        if not self.owns:
            self.owns = True
            _owners[self.folder] += 1
        _swept_at_exit(self.folder.parent)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / TEXT).write_bytes(text)
        for path in weights:
            self.rewrite(path, weights[path])

    def rewrite(self, path: str, data: bytes | memoryview) -> None:
        """A new file in the place of the old one, whose bytes may still be mapped."""
        file = self.file(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.new")
        new.write_bytes(data)
        new.replace(file)

    def text(self) -> bytes | None:
        try:
            return (self.folder / TEXT).read_bytes()
        except FileNotFoundError:
            return None

    def files(self, weights: Mapping[str, object]) -> dict[str, memoryview]:
        """Those of the weight files that are there."""
        found = {path: self.file(path) for path in weights}
        return {path: mapped(file) for path, file in found.items() if file.is_file()}

    def release(self) -> None:
        if not self.owns:
            return
        self.owns = False
        _owners[self.folder] -= 1
        if not _owners[self.folder]:
            del _owners[self.folder]
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):  # others are in it
                self.folder.parent.rmdir()
