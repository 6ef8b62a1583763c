"""What `npu-smi info` prints, by the words of its headings: columns differ between chips.

Each chip has two rows, and the table two headings: a row is read with the heading of its place.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

TIME = 10  # seconds that it may take
DRIVER = Path("/proc/driver/ascendmm")  # if the driver has it: boards' have been seen to
FRESH = 5  # seconds that its answer is good for: it takes a second of its own


@attrs.define
class Health:
    """What it says of one chip."""

    toolkit: Path | None
    index: int
    _chips: list[dict[str, object]] = attrs.field(factory=list)
    _asked: float = float("-inf")

    def told(self) -> Mapping[str, object]:
        if time.monotonic() - self._asked > FRESH:
            self._asked, self._chips = time.monotonic(), parse(run(self.toolkit))
        return self._chips[self.index] if self.index < len(self._chips) else {}


def driver_memory(index: int, root: Path = DRIVER) -> Mapping[str, int]:
    """What the driver itself says of a chip's memory, in its own units, where it has a file for
    that: all of it, and what is in use and free."""
    try:
        text = (root / f"ascendmm{index}/mem_info").read_text("utf-8", "replace")
    except OSError:
        return {}
    found = re.findall(r"\b(total|used|free)\b\D*?(\d+)", text, re.IGNORECASE)
    return {f"driver_memory_{name.lower()}": int(number) for name, number in found}


def run(toolkit: Path | None = None, limit: float = TIME) -> str:
    """Its output; empty where there is none, or it fails, or takes longer."""
    inside = toolkit / "bin/npu-smi" if toolkit else None
    program = str(inside) if inside and inside.is_file() else shutil.which("npu-smi")
    if program is None:
        return ""
    try:
        command = [program, "info"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def parse(text: str) -> list[dict[str, object]]:
    """Each chip with what is told of it: health, power_w, temperature_c, memory in bytes."""
    rows = [_cells(line) for line in text.splitlines() if line.strip().startswith("|")]
    rows = [row for row in rows if len(row) > 1]
    heads = [i for i, row in enumerate(rows) if row[0].split()[:1] in (["NPU"], ["Chip"])]
    chips: list[dict[str, object]] = []
    if len(heads) < 2 or heads[1] != heads[0] + 1:
        return chips
    first, second = rows[heads[0]], rows[heads[1]]
    body = [r for r in rows[heads[1] + 1 :] if len(r) == len(first)]
    for upper, lower in zip(body[::2], body[1::2], strict=False):
        if not re.match(r"\d", upper[0].strip()):
            break
        chips.append(dict(_named(first, upper)) | dict(_named(second, lower)))
    return chips


def _cells(line: str) -> list[str]:
    return line.strip().strip("|").split("|")


def _named(heads: list[str], cells: list[str]) -> Iterator[tuple[str, object]]:
    for head, cell in zip(heads, cells, strict=False):
        names = head.split()
        values = re.findall(r"-?[\d.]+\s*/\s*-?[\d.]+|\S+", cell)
        for name, value in zip(names, values, strict=False):
            yield from _value(name, value)


_UNITS: Mapping[str, tuple[str, str]] = {
    "Power(W)": ("power_w", ""),
    "Temp(C)": ("temperature_c", ""),
    "AICore(%)": ("utilisation_percent", ""),
    "Memory-Usage(MB)": ("memory_ddr_used", "memory_ddr_total"),
    "HBM-Usage(MB)": ("memory_hbm_used", "memory_hbm_total"),
    "Hugepages-Usage(page)": ("hugepages_used", "hugepages_total"),
    "NPU": ("npu", ""),
    "Chip": ("chip", ""),
    "Name": ("name", ""),
    "Health": ("health", ""),
    "Bus-Id": ("bus", ""),
}


def _value(name: str, text: str) -> Iterator[tuple[str, object]]:
    """What is not told ("NA") is left out."""
    first, second = _UNITS.get(name, ("", ""))
    parts = [part.strip() for part in text.split("/")]
    for key, part in zip((first, second), parts, strict=False):
        if key and part not in ("NA", "-", ""):
            number = re.fullmatch(r"-?\d+(\.\d+)?", part)
            value = part if not number else float(part) if number[1] else int(part)
            if key.startswith("memory") and isinstance(value, int):
                value <<= 20
            yield key, value
