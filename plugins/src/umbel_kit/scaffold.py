"""A new plugin from the template beside this file: a distribution that installs and passes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from umbel.errors import OptionError

TEMPLATE = Path(__file__).with_name("template")
PLACEHOLDER = "newname"
LONGEST = 32
TAKEN = ("auto", "compare", "core", "host", "kit", "plugin")  # of the core, or of the kit


def write(name: str, into: Path) -> Path:
    """Writes `into`/plugin-NAME, whole or not at all; says where that is."""
    _check(name)
    folder = into / f"plugin-{name}"
    if folder.exists() or folder.is_symlink():
        msg = "there is such a folder already"
        raise OptionError(msg, where=folder, do="take another name, or move the folder away")
    try:
        with tempfile.TemporaryDirectory(dir=into, prefix=".umbel-") as beside:
            made = Path(beside, "new")
            for path in _files():
                place = made / str(path.relative_to(TEMPLATE)).replace(PLACEHOLDER, name)
                place.parent.mkdir(parents=True, exist_ok=True)
                text = path.read_text("utf-8").replace(PLACEHOLDER, name)
                place.write_text(text, "utf-8", newline="\n")
            made.rename(folder)
    except OSError as error:
        msg = "the plugin cannot be written"
        raise OptionError(msg, where=into, got=error.strerror or error) from error
    return folder


def _check(name: str) -> None:
    """It becomes a module `umbel_NAME`, a distribution `umbel-NAME` and a device `NAME:0`."""
    fits = re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) and len(name) <= LONGEST
    if not fits:
        msg = "a backend cannot be called like that"
        expected = f"at most {LONGEST} of a-z, 0-9 and single _ between, such as npu or my_npu"
        raise OptionError(msg, where="NAME", expected=expected, got=repr(name))
    if name in {*TAKEN, *_commands()}:
        msg = "Umbel uses that name itself"
        raise OptionError(msg, where="NAME", got=name, do="take another name")


def _commands() -> list[str]:
    """Of `umbel`, beside which a backend's own stands under its name."""
    from umbel.cli import parser

    return list(parser()[1].choices)


def _files() -> Iterator[Path]:
    """The files of the template; installing leaves compiled ones among them."""
    for path in sorted(TEMPLATE.rglob("*")):
        if path.is_file() and path.parent.name != "__pycache__":
            yield path
