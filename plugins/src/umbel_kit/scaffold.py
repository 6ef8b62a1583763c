"""A new plugin from the template beside this file: a distribution that installs and passes."""

from __future__ import annotations

import re
import shutil
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

from umbel.errors import OptionError

PLACEHOLDER = "newname"
TAKEN = ("auto", "core", "host", "kit", "plugin")


def write(name: str, into: Path) -> Path:
    """Writes `into`/plugin-NAME, whole or not at all; says where that is."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,30}", name) or name in TAKEN:
        msg = "a backend cannot be called like that"
        expected = "small letters, digits and _, and none of " + ", ".join(TAKEN)
        raise OptionError(msg, where="NAME", expected=expected, got=name)
    folder = into / f"plugin-{name}"
    if folder.exists():
        msg = "there is such a folder already"
        raise OptionError(msg, where=folder, do="take another name, or move the folder away")
    try:
        with (
            as_file(files("umbel_kit").joinpath("template")) as template,
            tempfile.TemporaryDirectory(dir=into, prefix=".umbel-") as beside,
        ):
            made = Path(beside, "new")
            shutil.copytree(template, made, ignore=shutil.ignore_patterns("__pycache__"))
            for path in sorted(made.rglob("*"), reverse=True):
                if path.is_file():
                    text = path.read_text("utf-8").replace(PLACEHOLDER, name)
                    path.write_text(text, "utf-8")
                path.rename(path.with_name(path.name.replace(PLACEHOLDER, name)))
            made.rename(folder)
    except OSError as error:
        msg = "the plugin cannot be written"
        raise OptionError(msg, where=into, got=error.strerror) from error
    return folder
