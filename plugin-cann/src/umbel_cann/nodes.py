"""The device nodes of this machine's chips, and which of them the runtime counts."""

from __future__ import annotations

import os
from pathlib import Path

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"  # the runtime's own: it counts only these
_NAME = "davinci"


def nodes(root: Path = Path("/")) -> list[Path]:
    """The device nodes of chips, by their numbers."""
    return sorted((root / "dev").glob(f"{_NAME}[0-9]*"), key=number)


def number(node: Path) -> int:
    return int(node.name.removeprefix(_NAME))


def visible(chips: list[Path]) -> list[Path]:
    """Those that a program sees, in its order: up to the first name that is of none."""
    if VISIBLE not in os.environ:
        return chips
    by_name, shown = {str(number(path)): path for path in chips}, list[Path]()
    for name in os.environ[VISIBLE].split(","):
        if name.strip() not in by_name:
            break
        shown.append(by_name[name.strip()])
    return shown


def number_of(index: int) -> int:
    """The chip that a program calls `index`, as npu-smi counts them."""
    chips = visible(nodes())
    return number(chips[index]) if index < len(chips) else index
