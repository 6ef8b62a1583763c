"""From the folder of a Hugging Face model to a GGUF file.

First everything is decided from the small files and the headers of the large ones; the header
of the file is written, and read back as a model is loaded, so that what is missing, misshapen
or of no use to the model shows before a tensor is copied. Then the tensors go one by one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from umbel.errors import ModelFormatError
from umbel.gguf.types import BY_NAME, F32
from umbel.tools.convert.architectures import Recipe, recipe_of
from umbel.tools.convert.folder import Folder
from umbel.tools.convert.general import general_keys, pooling_keys
from umbel.tools.convert.hparams import FULL
from umbel.tools.convert.rope import rope_of, rope_tensors
from umbel.tools.convert.tensors import Output, outputs
from umbel.tools.convert.tokenizer import tokenizer_keys
from umbel.tools.convert.writer import TYPES, Entry, Progress, write
from umbel.tools.gguf_file import check_place

__all__ = ["AUTO", "TYPES", "convert"]

log = logging.getLogger("umbel.convert")

AUTO = "auto"


def convert(
    folder: Path,
    out: Path,
    *,
    kind: str = AUTO,
    force: bool = False,
    progress: Progress = lambda *_: None,
) -> None:
    """Writes the model in `folder` to `out`, matrices in the type `kind` (AUTO: as they are).

    Nothing is left half-written; a file that exists is only replaced with `force`.
    """
    source = Folder(folder)
    check_place(out, (p for p in folder.iterdir() if p.suffix != ".gguf"), force)
    recipe = recipe_of(source.config)
    own = {**recipe.hparams(source.config), **pooling_keys(source)}
    found = _outputs(source, recipe)
    entries = _scaling(source, own) + [_entry(source, output, kind) for output in found]
    own["vocab_size"] = rows = _rows(source, found, own["embedding_length"])
    keys = general_keys(source, recipe.arch, entries)
    keys |= {f"{recipe.arch}.{key}": value for key, value in own.items()}
    keys |= tokenizer_keys(source, rows)
    if recipe.arch == "bert":
        keys["tokenizer.ggml.token_type_count"] = source.config.count("type_vocab_size")
    write(out, keys, entries, source.path, progress)


def _outputs(source: Folder, recipe: Recipe) -> list[Output]:
    """The tensors of the file, but those that the configuration alone gives."""
    left = [name for name in source.tensors if re.fullmatch(recipe.headless, name)]
    if left:
        text = "%s: left out, since the file is for hidden states: %s"
        log.warning(text, source.path, ", ".join(left))
    ignored = f"{recipe.ignored}|{recipe.headless}"
    found = outputs(source, recipe.table, recipe.changes, ignored, recipe.prefix)
    if source.config.get("tie_word_embeddings", bool, recipe.tied):
        return [output for output in found if output.name != "output.weight"]
    if "output" in recipe.table.values() and all(
        output.name != "output.weight" for output in found
    ):
        msg, do = "the tensor 'lm_head.weight' is missing", "fetch the whole folder"
        raise ModelFormatError(msg, where=source.path, do=do)
    return found


def _rows(source: Folder, found: list[Output], width: int) -> int:
    """Those of the token embedding, which a tokenizer must not exceed."""
    shape = next((output.shape for output in found if output.name == "token_embd.weight"), ())
    if shape[1:] != (width,) or not width:
        msg, expected = "the token embedding is missing, or of another shape", f"[..., {width}]"
        got = list(shape) or None
        raise ModelFormatError(msg, where=source.path, expected=expected, got=got)
    return shape[0]


def _entry(source: Folder, output: Output, kind: str) -> Entry:
    """The tensor as the file will hold it."""
    own = source.dtype(output.sources[0])
    wanted = "F32" if output.precise else own if kind == AUTO else kind
    if wanted not in TYPES:
        log.warning("%s: %r is written as F32, not %s", source.path, output.name, wanted)
        wanted = "F32"
    dtype = BY_NAME[wanted.lower()]
    return Entry(output.name, output.shape, dtype, partial(output.values, source))


def _scaling(source: Folder, own: Mapping[str, Any]) -> list[Entry]:
    """The tensors that scale rotary frequencies, which the configuration holds as numbers."""
    n_dims = own.get("rope.dimension_count")
    if not isinstance(n_dims, int):
        return []
    rope = rope_of(source.config, FULL, own["rope.freq_base"])
    made = rope_tensors(source.config, rope, n_dims)
    return [Entry(name, v.shape, F32, v.copy) for name, v in made.items()]
