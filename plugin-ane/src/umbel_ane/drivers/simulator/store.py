"""What the simulated system keeps: compiled programs, beyond the process, by their identifier.

    XDG_CACHE_HOME/umbel/ane-simulator/PROFILE/
        programs/ID/model.mil, files.json     the text; a SHA-256 for each path of a weight file
        blobs/SHA-256                         weight files; programs share equal ones

A program's folder appears whole or not at all. Each program holds a second link to its blobs,
so a blob that nobody else has a link to can go, whatever other processes do meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import attrs

TEXT = "model.mil"


def root() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "umbel" / "ane-simulator"


@attrs.frozen(eq=False)
class Snapshot:
    """A program as it was compiled."""

    text: bytes
    files: Mapping[str, memoryview]  # mapped
    digests: Mapping[str, str]


def mapped(path: Path) -> memoryview:
    """A file's bytes, read when they are looked at."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@attrs.frozen(eq=False)
class Store:
    folder: Path

    @classmethod
    def of(cls, profile: str) -> Store:
        return cls(root() / profile)

    def _program(self, hex_id: str) -> Path:
        return self.folder / "programs" / hex_id

    def has(self, hex_id: str) -> bool:
        return (self._program(hex_id) / "files.json").exists()

    def keep(self, hex_id: str, text: bytes, files: Mapping[str, memoryview]) -> None:
        """Takes copies."""
        programs = self.folder / "programs"
        programs.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=programs))
        try:
            digests = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
            for path, digest in digests.items():
                if not (made / digest).exists():
                    self._link(digest, files[path], made / digest)
            (made / TEXT).write_bytes(text)
            (made / "files.json").write_text(json.dumps(digests), "utf-8")
            shutil.rmtree(self._program(hex_id), ignore_errors=True)
            made.rename(self._program(hex_id))
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            if not self.has(hex_id):  # else another process was faster
                raise

    def _link(self, digest: str, data: memoryview, own: Path) -> None:
        """One file with two names, the program's own and that of its contents, unless somebody
        has spoilt those."""
        blob = self.folder / "blobs" / digest
        blob.parent.mkdir(parents=True, exist_ok=True)
        try:
            if blob.read_bytes() != data:
                blob.unlink(missing_ok=True)
            os.link(blob, own)
        except FileNotFoundError:
            own.write_bytes(data)
            with suppress(FileExistsError):  # another process was faster: two do no harm
                os.link(own, blob)

    def snapshot(self, hex_id: str) -> Snapshot:
        """Raises OSError where it is not kept."""
        folder = self._program(hex_id)
        digests = json.loads((folder / "files.json").read_text("utf-8"))
        named = digests.values() if isinstance(digests, dict) else [digests]
        if not isinstance(digests, dict) or not all(isinstance(name, str) for name in named):
            msg = "files.json is no list of files"
            raise OSError(msg)
        files = {path: mapped(folder / digest) for path, digest in digests.items()}
        return Snapshot((folder / TEXT).read_bytes(), files, digests)

    def purge(self, hex_id: str) -> None:
        shutil.rmtree(self._program(hex_id), ignore_errors=True)
        self._sweep()

    def cached(self) -> Sequence[str]:
        found = (path.parent.name for path in self.folder.glob("programs/*/files.json"))
        return sorted(name for name in found if not name.startswith("."))

    def clear(self) -> int:
        kept = self.cached()
        for hex_id in kept:
            shutil.rmtree(self._program(hex_id), ignore_errors=True)
        self._sweep()
        return len(kept)

    def _sweep(self) -> None:
        for blob in self.folder.glob("blobs/*"):
            if blob.stat().st_nlink == 1:
                blob.unlink(missing_ok=True)
