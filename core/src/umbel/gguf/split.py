"""Models that are split over several files, NAME-00001-of-0000N.gguf, as gguf-split writes.

Each part is a GGUF file with the keys `split.no` (from 0) and `split.count`; the first also
holds the model's metadata, and every part its own tensors. Names and keys must agree: a part
of such a name without the keys, or with keys under another name, is refused, since a model
that lacks tensors without anybody noticing would be the alternative.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import attrs

from umbel.gguf.header import Header, TensorInfo
from umbel.gguf.values import Metadata, Packed, Value, refuse

_NAME = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_PER_PART = ("split.", "general.alignment")  # keys that say something of their own part only


def locate(path: Path, header: Header) -> list[Path]:
    """The paths of all parts of the model that the file at `path` belongs to, in order."""
    name = _NAME.fullmatch(path.name)
    named = (int(name["part"]) - 1, int(name["count"])) if name else (0, 1)
    kept = _kept(path, header)
    if named == kept == (0, 1):
        return [path]
    if name is None or named != kept:
        what = "the name of the file does not agree with its split.no and split.count"
        expected = f"a name that ends in -{kept[0] + 1:05}-of-{kept[1]:05}.gguf"
        refuse(what, path, expected, path.name, "give every part the name that it had")
    stem, count = name["stem"], named[1]
    paths = [path.with_name(f"{stem}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)]
    if missing := [part.name for part in paths if not part.is_file()]:
        got = f"{len(missing)} missing: {', '.join(missing[:4])}"
        refuse("not all parts of the model are there", path.parent, f"{count} files", got)
    return paths


def merge(paths: Sequence[Path], headers: Sequence[Header]) -> Header:
    """One header for all parts; the numbers of the parts and of their tensors must add up."""
    values: dict[str, Value | Packed] = {}
    tensors: dict[str, TensorInfo] = {}
    for index, (path, header) in enumerate(zip(paths, headers, strict=True)):
        if (kept := _kept(path, header)) != (index, len(paths)):
            expected = f"split.no and split.count {index, len(paths)}"
            refuse("a part is not what its name says", path, expected, kept)
        _add_metadata(values, header.metadata, path)
        for name, info in header.tensors.items():
            if name in tensors:
                where = f"{paths[tensors[name].part]} and {path}"
                refuse(f"the tensor {name!r} occurs twice", where)
            tensors[name] = attrs.evolve(info, part=index)
    total = _number(paths[0], headers[0], "split.tensors.count", len(tensors))
    if len(tensors) != total:
        refuse("the parts do not add up", paths[0], f"{total} tensors", len(tensors))
    return attrs.evolve(headers[0], metadata=Metadata(values), tensors=tensors)


def _add_metadata(values: dict[str, Value | Packed], metadata: Metadata, path: Path) -> None:
    for key in metadata:
        value = metadata.packed(key)
        if key not in values:
            values[key] = value
        elif not key.startswith(_PER_PART) and values[key] != value:
            refuse(f"the metadata key {key[:80]!r} differs from an earlier part's", path)


def _kept(path: Path, header: Header) -> tuple[int, int]:
    number = _number(path, header, "split.no", 0)
    return number, max(_number(path, header, "split.count", 1), 1)  # 0 is written for no split


def _number(path: Path, header: Header, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int or value < 0:
        refuse(f"the metadata key {key!r} is wrong", path, "a whole number", f"{value!r:.80}")
    return value
