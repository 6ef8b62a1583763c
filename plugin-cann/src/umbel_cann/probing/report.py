"""What a chip can do, in tables and lines for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from umbel.hookspecs import Finding

from umbel_cann.acl import codes
from umbel_cann.probing.cache import Tried

DTYPES = ("f16", "f32", "i32")
NO_PACKAGE = 561112


def table(found: Tried) -> Iterator[tuple[str, ...]]:
    """A row for each operator, and what was asked of it; why not, where it does not work."""
    yield ("operator", *DTYPES, "why not")
    rows: dict[str, dict[str, str | None]] = {}
    for name, why in found.verdicts.items():
        operator, dtype, *variant = name.split(" ")
        told = f"{operator}: {' '.join(variant)}" if variant else operator
        rows.setdefault(told, {})[dtype] = why
    for told, whys in sorted(rows.items()):
        words = (("no" if whys[d] else "yes") if d in whys else "" for d in DTYPES)
        yield (told, *words, "; ".join(dict.fromkeys(filter(None, whys.values()))))


def findings(found: Tried) -> Iterator[Finding]:
    """The same in a few lines: what works, and what does not for the same reason."""
    for dtype, names in _grouped(name for name, why in found.verdicts.items() if not why):
        yield Finding("ok", f"{found.soc} works with {dtype}: {', '.join(names)}")
    for why in dict.fromkeys(filter(None, found.verdicts.values())):
        failed = _grouped(name for name, reason in found.verdicts.items() if reason == why)
        lists = "; ".join(f"{dtype}: {', '.join(names)}" for dtype, names in failed)
        what = f"{found.soc} does not do {lists} ({why})"
        code = re.search(r"\((\d+)\)$", why)
        serious = code is not None and int(code[1]) == NO_PACKAGE
        do = codes.ADVICE[NO_PACKAGE] + "; then `umbel cann probe`" if serious else ""
        yield Finding("warning" if serious else "note", what, do)


def _grouped(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Operators by dtype, a variant in brackets."""
    found: dict[str, list[str]] = {}
    for name in names:
        operator, dtype, *variant = name.split(" ")
        more = f" ({' '.join(variant)})" if variant else ""
        found.setdefault(dtype, []).append(operator + more)
    return [(dtype, sorted(operators)) for dtype, operators in sorted(found.items())]
