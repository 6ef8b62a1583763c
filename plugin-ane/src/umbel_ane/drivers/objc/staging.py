"""Where a program's text and weights lie for the system to read: TEMPORARY/IDENTIFIER.

Programs with one identifier share a folder, in one process and among several: who is the last
to let it go removes it. Beside the folders, not in them, is written what is ours:

    TEMPORARY/umbel-ane/IDENTIFIER/PID       a process that uses the folder, while it lives
    TEMPORARY/umbel-ane/IDENTIFIER/compiled  the system was made to compile it
    TEMPORARY/umbel-ane/lock                 held while users come and go
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import attrs

from umbel_ane.drivers import AneError

PREFIX = "@model_path/"
TEXT, OURS, COMPILED = "model.mil", "umbel-ane", "compiled"
_users: Counter[Path] = Counter()  # of this process


@attrs.define(eq=False)
class Staged:
    """One user's part in a folder."""

    root: Path
    hex_id: str
    owns: bool = False

    @property
    def folder(self) -> Path:
        return self.root / self.hex_id

    @property
    def marks(self) -> Path:
        return self.root / OURS / self.hex_id

    def file(self, path: str) -> Path:
        """Of a path in the text; one that would lie outside of the folder is refused."""
        name = PurePosixPath(path.removeprefix(PREFIX))
        if not path.startswith(PREFIX) or name.is_absolute() or ".." in name.parts:
            msg = f"a weight file would not lie in its program's folder: {path}"
            do = f"begin its path with {PREFIX}"
            raise AneError(msg, text="InvalidMILProgram", do=do)
        return self.folder / name

    def stage(self, text: bytes, weights: Mapping[str, bytes | memoryview]) -> None:
        """All files at first; later those that are gone, so that what was rewritten stays."""
        files = {self.folder / TEXT: text} | {self.file(p): weights[p] for p in weights}
        with _locked(self.root):
            first = not self.owns
            if first:
                self._enter()
            for file, data in files.items():
                if first or not file.is_file():
                    _write(file, data)

    def _enter(self) -> None:
        self.marks.mkdir(parents=True, exist_ok=True)
        (self.marks / str(os.getpid())).touch()
        _users[self.folder] += 1
        self.owns = True

    def rewrite(self, path: str, data: bytes) -> None:
        _write(self.file(path), data)

    def mark_compiled(self) -> None:
        self.marks.mkdir(parents=True, exist_ok=True)
        (self.marks / COMPILED).touch()

    def unmark(self) -> None:
        (self.marks / COMPILED).unlink(missing_ok=True)

    def release(self) -> None:
        if not self.owns:
            return
        self.owns = False
        with _locked(self.root):
            _users[self.folder] -= 1
            if _users[self.folder]:
                return
            del _users[self.folder]
            (self.marks / str(os.getpid())).unlink(missing_ok=True)
            if not _living(self.marks):
                shutil.rmtree(self.folder, ignore_errors=True)
            _remove_empty(self.marks)


def cached(root: Path) -> list[str]:
    """Identifiers of what was compiled from here, by this user."""
    return sorted(mark.parent.name for mark in (root / OURS).glob(f"*/{COMPILED}"))


def clear(root: Path) -> int:
    """Forgets those, and removes what processes left that have ended; how many there were."""
    known = cached(root)
    with _locked(root):
        for marks in [path for path in (root / OURS).iterdir() if path.is_dir()]:
            (marks / COMPILED).unlink(missing_ok=True)
            if not _living(marks):
                shutil.rmtree(root / marks.name, ignore_errors=True)
                shutil.rmtree(marks, ignore_errors=True)
    return len(known)


def _living(marks: Path) -> list[int]:
    """The processes that use a folder; marks of ended ones are removed."""
    found = []
    for mark in marks.glob("[0-9]*"):
        pid = int(mark.name)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            mark.unlink(missing_ok=True)
            continue
        except PermissionError:
            pass  # it lives, and is another user's
        found.append(pid)
    return found


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # what was compiled stays known, and others may use it
        folder.rmdir()


def _write(file: Path, data: bytes | memoryview) -> None:
    """Whole or not at all: the old bytes may still be mapped by who reads them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        new.write_bytes(data)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Against other processes that come or go."""
    (root / OURS).mkdir(parents=True, exist_ok=True)
    with (root / OURS / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
