"""Vectors of other projects, from the folder that UMBEL_VECTORS names.

It holds the sdists llama-cpp-python 0.3.36 and sentencepiece 0.2.3, as .tar.gz or unpacked.
Without the variable nothing here is collected.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = os.environ.get("UMBEL_VECTORS", "")
WANTED = ("models/ggml-vocab-", "test/botchan")

collect_ignore_glob = [] if FOLDER else ["test_*.py"]


@pytest.fixture(scope="session")
def vector_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The path of a file of the sdists by its name."""
    unpacked = tmp_path_factory.mktemp("vectors")
    for sdist in Path(FOLDER).glob("*.tar.gz"):
        with tarfile.open(sdist) as tar:
            for member in tar:
                if member.isfile() and any(part in member.name for part in WANTED):
                    _unpack(tar, member, unpacked)
    found = {path.name: path for root in (Path(FOLDER), unpacked) for path in root.rglob("*")}
    return found.__getitem__


def _unpack(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None
    (folder / Path(member.name).name).write_bytes(source.read())
