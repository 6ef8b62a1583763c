"""A Hugging Face folder: its JSON files, and its tensors one at a time.

The weights are in `model.safetensors`, or in the shards that `model.safetensors.index.json`
lists. The package `safetensors` maps and checks the files; with `ml_dtypes` loaded, NumPy knows
bfloat16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import attrs
import numpy as np

from umbel.errors import ModelFormatError, OptionError, UnsupportedModelError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model*.bin", "*.pth", "*.pt", "tf_model.h5", "flax_model.msgpack")
READABLE = ("F32", "F16", "BF16", "F64")


@attrs.frozen
class Config:
    """The values of one JSON object; one that is null counts as missing."""

    values: Mapping[str, Any]
    where: str

    def get(self, key: str, kind: type | tuple[type, ...], *default: Any) -> Any:
        """The value, which must be of `kind`; without a default it is required."""
        value = self.values.get(key)
        if value is None and default:
            return default[0]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if type(value) not in kinds:  # not isinstance: a bool is no number
            names = " or ".join(k.__name__ for k in kinds)
            self.refuse(key, names, "nothing" if value is None else value)
        return value

    def count(self, key: str, *default: int) -> int:
        value: int = self.get(key, int, *default)
        if not 0 <= value < 1 << 31:
            self.refuse(key, "a whole number from 0 on", value)
        return value

    def real(self, key: str, *default: float) -> float:
        value = float(self.get(key, (float, int), *default))
        if not math.isfinite(value):
            self.refuse(key, "a finite number", value)
        return value

    def positive(self, key: str, *default: float) -> float:
        value = self.real(key, *default)
        if value <= 0:
            self.refuse(key, "a number above 0", value)
        return value

    def only(self, key: str, *allowed: object) -> None:
        """Refuses a value that would change what the model computes."""
        value = self.values.get(key)
        if value is not None and value not in allowed:
            msg, got = "the model needs something that is not supported here", f"{value!r:.200}"
            expected = f"{key} {' or '.join(map(str, allowed)) or 'not set'}"
            raise UnsupportedModelError(msg, where=self.where, expected=expected, got=got)

    def refuse(self, key: str, expected: object, got: object) -> NoReturn:
        msg = f"{key!r} has a value that cannot be, or is missing"
        raise ModelFormatError(msg, where=self.where, expected=expected, got=f"{got!r:.200}")


class Folder:
    """The files of one model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            msg = "there is no such folder"
            do = "give the folder that holds config.json and model.safetensors"
            raise OptionError(msg, where=path, do=do)
        if not (path / "config.json").exists():
            msg, do = "this is no Hugging Face model folder", "give the folder that holds it"
            raise OptionError(msg, where=path, expected="config.json", do=do)
        self.config = self.config_of("config.json")

    def config_of(self, name: str) -> Config:
        """The object in a JSON file, empty where there is no such file."""
        return Config(self.json(name) or {}, str(self.path / name))

    def json(self, name: str) -> dict[str, Any] | None:
        """The same as a plain dict, None where there is no such file."""
        text = self.text(name)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            msg = "the file is not JSON"
            raise ModelFormatError(msg, where=self.path / name, got=error) from error
        if not isinstance(found, dict):
            msg, got = "the file holds no JSON object", type(found).__name__
            raise ModelFormatError(msg, where=self.path / name, expected="{...}", got=got)
        return found

    def text(self, name: str) -> str | None:
        path = self.path / name
        try:
            return path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            msg = "the file cannot be read"
            raise ModelFormatError(msg, where=path, got=error) from error

    # tensors

    @cached_property
    def _shards(self) -> dict[str, Any]:
        """The open file of each tensor."""
        found: dict[str, Any] = {}
        paths, safe_open = self._paths, _safe_open()
        for path in paths:
            try:
                shard = safe_open(path, framework="numpy")
                names = list(shard.keys())
            except FileNotFoundError as error:
                msg = f"a file that {INDEX} lists is missing"
                do = "fetch the whole folder"
                raise ModelFormatError(msg, where=path, do=do) from error
            except Exception as error:  # OSError, and the package's own of several kinds
                msg, do = "the file is truncated or malformed", "fetch it again"
                raise ModelFormatError(msg, where=path, got=error, do=do) from error
            if twice := next((name for name in names if name in found), None):
                msg = f"the tensor {twice!r} is in an earlier file too"
                raise ModelFormatError(msg, where=path)
            found |= dict.fromkeys(names, shard)
        lost = [name for name in self._index if name not in found]
        if lost:
            msg, got = "a tensor that is listed is in none of the files", lost[0]
            raise ModelFormatError(msg, where=self.path / INDEX, expected=got)
        return found

    @cached_property
    def _index(self) -> dict[str, str]:
        """The file of each tensor, where they are in several."""
        if (self.path / WHOLE).exists():
            return {}
        listed: dict[str, str] = self.config_of(INDEX).get("weight_map", dict, {})
        for name, file in listed.items():
            if not isinstance(file, str) or Path(file).name != file:
                msg = f"the tensor {name!r} is said to be in something that is no file here"
                raise ModelFormatError(msg, where=self.path / INDEX, got=f"{file!r:.200}")
        return listed

    @property
    def _paths(self) -> list[Path]:
        if (self.path / WHOLE).exists():
            return [self.path / WHOLE]
        if self._index:
            return [self.path / name for name in sorted(set(self._index.values()))]
        others = [p.name for pattern in PICKLES for p in sorted(self.path.glob(pattern))]
        msg, do = "the folder holds no weights as safetensors", None
        if others:
            do = "save the model again with transformers: model.save_pretrained(FOLDER)"
        got = ", ".join(others[:3]) or "none"
        raise OptionError(msg, where=self.path, expected=WHOLE, got=got, do=do)

    @property
    def tensors(self) -> list[str]:
        return list(self._shards)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._shards[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """The type as safetensors spells it: F32, F16, BF16 or F64."""
        kind = str(self._shards[name].get_slice(name).get_dtype())
        if kind not in READABLE:
            msg, known = f"the tensor {name!r} has a type that is not read", ", ".join(READABLE)
            do = "take the folder of the model before it was quantised"
            raise UnsupportedModelError(msg, where=self.path, expected=known, got=kind, do=do)
        return kind

    def array(self, name: str) -> np.ndarray:
        """The values, in the type that they have there."""
        return np.asarray(self._shards[name].get_tensor(name))


def _safe_open() -> Any:
    try:
        import_module("ml_dtypes")
        return import_module("safetensors").safe_open
    except ImportError as error:
        msg = "reading safetensors needs the extra [convert]"
        raise OptionError(msg, got=error, do="pip install 'umbel-core[convert]'") from error
