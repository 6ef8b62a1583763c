"""A simulator of Ascend NPUs for developers: C libraries with the vendor's interface, in a
folder that is laid out like a toolkit."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from struct import calcsize, iter_unpack, unpack_from

from umbel.errors import DeviceError

FAULTS = "UMBEL_CANN_FAULT"
TOOLKIT = Path(__file__).parent / "toolkit"
LIBRARIES = "lib64"
SECTION = "<IIQQQQIIQQ"  # of an ELF file
SYMBOL = "<IBBHQQ"
DYNAMIC_SYMBOLS = 11


def chips() -> list[str]:
    """The chips that there are, as UMBEL_CANN_SIMULATOR names them."""
    return sorted(path.stem for path in (TOOLKIT / "chips").glob("*.txt"))


@cache
def toolkit() -> Path:
    """The folder; a copy of it that ends with the process, where the environment asks for one
    that lacks something (UMBEL_CANN_FAULT=symbol=NAME or library=NAME.so)."""
    if not (TOOLKIT / LIBRARIES / "libascendcl.so").exists():
        msg = "the simulator's libraries are not built"
        do = "pip install ./plugin-cann/simulator"
        raise DeviceError(msg, where=TOOLKIT / LIBRARIES, do=do)
    entries = os.environ.get(FAULTS, "").split(",")
    faults = (entry.strip().partition("=") for entry in entries)
    missing = [name for fault, _, name in faults if fault in ("symbol", "library")]
    if not missing:
        return TOOLKIT
    folder = Path(tempfile.mkdtemp(prefix="umbel-cann-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return without(folder / "toolkit", *missing)


def without(folder: Path, *names: str) -> Path:
    """A copy of the toolkit as `folder` that lacks these symbols, and libraries (NAME.so)."""
    shutil.copytree(TOOLKIT, folder)
    left = set(names)
    for library in sorted((folder / LIBRARIES).glob("*.so")):
        content = bytearray(library.read_bytes())
        found = _take_away(content, set(names))
        if found:
            library.write_bytes(content)
        if library.name in names:
            library.unlink()
        left -= {*found, library.name}
    if left:
        msg = "the simulator has no such symbol or library to take away"
        raise DeviceError(msg, where=FAULTS, got=", ".join(sorted(left)))
    return folder


def _take_away(library: bytearray, symbols: set[str]) -> set[str]:
    """Leaves the entries of these symbols without a name; which of them there were."""
    (start,) = unpack_from("<Q", library, 40)
    size, count = unpack_from("<HH", library, 58)
    sections = [unpack_from(SECTION, library, start + i * size) for i in range(count)]
    table = next(s for s in sections if s[1] == DYNAMIC_SYMBOLS)
    at, length, names = table[4], table[5], sections[table[6]][4]
    found = set[str]()
    entries = iter_unpack(SYMBOL, bytes(library[at : at + length]))
    for i, (offset, _, _, section, _, _) in enumerate(entries):
        begin = names + offset
        name = library[begin : library.index(0, begin)].decode()
        if section and name in symbols:
            place = at + i * calcsize(SYMBOL)
            library[place : place + 4] = bytes(4)
            found.add(name)
    return found
