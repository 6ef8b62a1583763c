"""abi.toml in a form that tests compare, and C prototypes likewise.

Every value is one letter, those of `umbel_cann.acl.prototypes.KINDS`; here all pointers are p,
but those to an operator's descriptors.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ABI: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "abi.toml").read_text())
NATIVE = Path(__file__).parents[1] / "simulator/src/umbel_cann_simulator/native"

DESCRIPTORS = {"aclTensor*": "T", "aclScalar*": "S", "aclIntArray*": "A", "aclTensorList*": "L"}
LETTERS = {
    "int": "i",
    "int32_t": "i",
    "uint32_t": "u",
    "int64_t": "l",
    "uint64_t": "U",
    "size_t": "z",
    "int8_t": "c",
    "uint16_t": "h",
    "aclFloat16": "h",
    "bool": "b",
    "_Bool": "b",
    "float": "f",
    "double": "d",
    "char*": "s",
    "aclrtCallback": "p",
    **dict.fromkeys(ABI["types"]["int"], "i"),
    **dict.fromkeys(ABI["types"]["void*"], "p"),
}


def letter(declared: str, *, descriptors: bool = False) -> str:
    """That of one C declaration, with or without a name: `const aclTensor *self`."""
    text = re.sub(r"\b(const|ACL_API|extern|struct)\b", " ", declared)
    stars = text.count("*") + text.count("[")
    words = text.replace("*", " ").replace("[", " ").replace("]", " ").split()
    kind = words[0] + "*" * stars
    if descriptors and kind in DESCRIPTORS:
        return DESCRIPTORS[kind]
    if kind == "char*":
        return "s"
    return "p" if stars else LETTERS[kind]


def letters(arguments: str, *, descriptors: bool = False) -> str:
    """Those of a list of arguments."""
    given = [a for a in arguments.split(",") if a.strip() not in ("", "void")]
    return "".join(letter(a, descriptors=descriptors) for a in given)


def functions() -> dict[str, tuple[str, str]]:
    """Result and arguments of every function, the phases of operators among them."""
    found = {k: (letter(r), letters(a)) for k, (r, a) in ABI["functions"].items()}
    phases = ABI["phases"]
    for name, arguments in ABI["operators"].items():
        own = letters(arguments, descriptors=True)
        if name in phases["one"]:
            found[f"aclnn{name}"] = "i", own
        else:
            found[f"aclnn{name}GetWorkspaceSize"] = "i", own + letters(phases["first"])
            found[f"aclnn{name}"] = "i", letters(phases["second"])
    return found


def preprocessed(path: Path) -> str:
    """A C source with its macros expanded, which also make functions; without what it
    includes from the system."""
    command = [os.environ.get("CC", "cc"), "-E", "-D_GNU_SOURCE", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own, kept = False, []
    for line in done.stdout.splitlines():
        if line.startswith("#"):
            own = str(path.parent) in line
        elif own:
            kept.append(line)
    return "\n".join(kept).replace('__attribute__((visibility("default")))', "ACL_API")


_PROTOTYPE = re.compile(r"ACL_API\s+([\w\s*]+?)\b(acl\w+)\s*\(([^()]*)\)", re.DOTALL)


def prototypes(text: str) -> dict[str, tuple[str, str]]:
    """Those of a C source; of operators with their descriptors."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    found = {}
    for result, name, arguments in _PROTOTYPE.findall(text):
        phase = bool(re.fullmatch(r"aclnn[A-Z]\w*GetWorkspaceSize|aclnnCalculate\w+", name))
        found[name] = letter(result), letters(arguments, descriptors=phase)
    return found


def constants(text: str) -> dict[str, int]:
    """The values of all enums of a C source, also those that only count on."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    found: dict[str, int] = {}
    for body in re.findall(r"enum\s*\w*\s*\{([^}]*)\}", text):
        value = -1
        for entry in filter(str.strip, body.split(",")):
            name, _, given = (part.strip() for part in entry.partition("="))
            value = int(given, 0) if given else value + 1
            found[name] = value
    return found
