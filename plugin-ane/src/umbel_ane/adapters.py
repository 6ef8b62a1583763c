"""Orion's adapter folders as GGUF files, which the core's adapters are read from.

A folder has `config.txt` (`rank=`, `alpha=` and `targets=q,v`, a line each) and for each layer
and target `layerN/lora_{q,k,v,o}_{A,B}.bin`: weight files of one float16 value A [1, in, 1, r]
or B [1, out, 1, r] (Orion, github mechramc/Orion). y = x W^T + alpha / r (x A) B^T.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
from umbel import gguf
from umbel.errors import ModelFormatError
from umbel.models.hparams import Meta, read_hparams

from umbel_ane.mil.blob import BlobError, BlobFile

TARGETS = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
JOINED = "attn_qkv"
FIRST = 64  # where the metadata of a file's only value is


@attrs.frozen
class Config:
    rank: int
    alpha: float
    targets: tuple[str, ...]


def read_config(folder: Path) -> Config:
    """What `config.txt` says; `ModelFormatError` where it lacks something."""
    path = folder / "config.txt"
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        msg = "this is no adapter folder: it has no config.txt that can be read"
        raise ModelFormatError(msg, where=folder, got=error) from error
    given = {k.strip(): v.strip() for k, sign, v in (x.partition("=") for x in lines) if sign}
    try:
        rank, alpha = int(given.get("rank", "16")), float(given.get("alpha", "16"))
        targets = tuple(t.strip() for t in given.get("targets", "q,v").split(","))
        good = 0 < rank <= 4096 and 0 < alpha < 1e6 and set(targets) <= set(TARGETS)
    except ValueError:
        good = False
    if not good:
        msg = "the adapter's config.txt cannot be used"
        expected = "rank=N, alpha=X and targets= some of q,k,v,o, each on a line of its own"
        raise ModelFormatError(msg, where=path, expected=expected, got=given)
    return Config(rank, alpha, targets)


def factors(folder: Path, model: gguf.GGUFFile) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A (r, in) and B (out, r), which holds alpha / r, of each adapted weight of the model."""
    config = read_config(folder)
    made: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    hparams = read_hparams(Meta(model))
    layers = hparams.n_layer
    for i, (heads, kv) in enumerate(zip(hparams.n_head, hparams.n_head_kv, strict=True)):
        sizes = heads * hparams.head_dim_k, kv * hparams.head_dim_k, kv * hparams.head_dim_v
        made |= _layer(folder, config, model, i, sizes)
    more = [p.name for p in folder.glob("layer*") if p.name[5:].isdecimal()]
    beyond = [name for name in more if int(name[5:]) >= layers]
    if beyond or not made:
        msg = "the adapter is not one of this model"
        expected = f"layer0 to layer{layers - 1}"
        raise ModelFormatError(msg, where=folder, expected=expected, got=beyond or "none")
    return made


def _layer(
    folder: Path, config: Config, model: gguf.GGUFFile, i: int, sizes: Sequence[int]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """`sizes` are the rows of q, k and v, where one matrix joins them."""
    joined = model.tensors.get(f"blk.{i}.{JOINED}.weight")
    made: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for target in config.targets:
        info = model.tensors.get(f"blk.{i}.{TARGETS[target]}.weight")
        if info is None and (joined is None or target == "o"):
            msg = f"the model has no weight for the adapter's target {target!r}"
            raise ModelFormatError(msg, where=f"layer {i}", expected=", ".join(TARGETS))
        if info is not None:
            shape = info.shape
            made[f"blk.{i}.{TARGETS[target]}"] = _pair(folder, config, i, target, *shape)
        elif joined is not None:
            n_out = sizes["qkv".index(target)]
            parts[target] = _pair(folder, config, i, target, n_out, joined.shape[1])
    if parts:
        made[f"blk.{i}.{JOINED}"] = _together(parts, sizes)
    return made


def _together(
    parts: Mapping[str, tuple[np.ndarray, np.ndarray]], sizes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Those of q, k and v as one of the matrix that joins the three."""
    rank = sum(len(a) for a, _ in parts.values())
    b, at = np.zeros((sum(sizes), rank), np.float32), 0
    for target, (_, own) in parts.items():
        first = sum(sizes[: "qkv".index(target)])
        b[first : first + len(own), at : at + own.shape[1]] = own
        at += own.shape[1]
    return np.concatenate([a for a, _ in parts.values()]), b


def _pair(
    folder: Path, config: Config, i: int, target: str, n_out: int, n_in: int
) -> tuple[np.ndarray, np.ndarray]:
    a = _values(folder / f"layer{i}" / f"lora_{target}_A.bin", (n_in, config.rank))
    b = _values(folder / f"layer{i}" / f"lora_{target}_B.bin", (n_out, config.rank))
    return np.ascontiguousarray(a.T), b * np.float32(config.alpha / config.rank)


def _values(path: Path, shape: tuple[int, int]) -> np.ndarray:
    try:
        data = path.read_bytes()
    except OSError as error:
        msg = "a file of the adapter cannot be read"
        raise ModelFormatError(msg, where=path, got=error) from error
    try:
        values = BlobFile(data).read(FIRST, "fp16").astype(np.float32)
    except BlobError as error:
        msg = "a file of the adapter is no weight file of float16"
        raise ModelFormatError(msg, where=path, got=error.what) from error
    if values.size != shape[0] * shape[1] or not np.isfinite(values).all():
        msg = "a file of the adapter has another size, or values that are not finite"
        got = f"{values.size} values"
        raise ModelFormatError(msg, where=path, expected=f"{list(shape)} of float16", got=got)
    return values.reshape(shape)


def convert(folder: Path, model: Path, to: Path) -> int:
    """Writes the GGUF file, as a whole or not at all; how many weights it adapts."""
    from gguf import GGUFWriter

    with gguf.open(model) as file:
        made = factors(folder, file)
        architecture = file.get("general.architecture", str)
    beside = to.with_name(to.name + ".part")
    try:
        writer = GGUFWriter(beside, architecture)
        writer.add_string("general.type", "adapter")
        writer.add_string("adapter.type", "lora")
        for stem, pair in made.items():
            for half, values in zip("ab", pair, strict=True):
                writer.add_tensor(f"{stem}.weight.lora_{half}", values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        beside.replace(to)
    finally:
        beside.unlink(missing_ok=True)
    return len(made)
