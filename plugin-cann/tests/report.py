"""Run as a program: the figures that the plugin is to reach, on simulated chips, as a table.

It ends with 1 if one of them is missed. It needs 2 GB of disk and 8 GB of memory, and minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from stepping import Size, write_qwen2, write_qwen3moe
from test_simulated import MODELS, QUANTISED
from test_states import MIXED, memory_of_sequences, most_of
from umbel.gguf.types import BY_NAME, F32, DType

HERE = Path(__file__).parent
ORACLES = HERE.parents[1] / "core/tests/data/oracles"
CHIPS = ("310B", "310P", "910B")
LAYERS = 36
SHAPE_3B = Size(LAYERS, wide=2048, inner=11008, heads=16, kv=2, words=151936)
EXPERTS = Size(4, wide=512, inner=192, experts=128, used=8)
BANDWIDTH = 44e9  # of a 310B, bytes in a second
LOADS = 100
# Operations that the host computes before a step, from positions alone.
AHEAD = {"rope_cos_sin"}


@attrs.frozen
class Row:
    what: str
    goal: str
    ours: str
    reached: bool = True


def mixed(name: str) -> DType:
    """Of which type a weight is in a file that is called Q4_K_M."""
    part = name.split(".")
    if part[0] != "blk":
        return BY_NAME["q6_k"]
    layer, eighth = int(part[1]), LAYERS // 8
    better = layer < eighth or layer >= 7 * LAYERS // 8 or (layer - eighth) % 3 == 2
    return BY_NAME["q6_k" if better and part[2] in ("attn_v", "ffn_down") else "q4_k"]


@attrs.frozen
class Chips:
    """Programs on simulated chips, which share what was tried out."""

    folder: Path

    def measure(self, chip: str, *arguments: object) -> Any:
        env = {**os.environ, "UMBEL_CANN_SIMULATOR": chip}
        env |= {"XDG_CACHE_HOME": str(self.folder)}
        command = [sys.executable, str(HERE / "measured.py"), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        if done.returncode:
            sys.exit(done.stderr)
        return json.loads(done.stdout)


def memory(chips: Chips) -> Iterator[Row]:
    """Of a large model, and what a token reads of it."""
    path = chips.folder / "large.gguf"
    write_qwen2(path, weights=mixed, size=SHAPE_3B)
    for chip in CHIPS:
        told = chips.measure(chip, "large", path, 2 if chip == "310B" else 0)
        calls, waste = told["mallocs"], told["reserved"] / told["needed"] - 1
        yield Row(
            f"aclrtMalloc calls, load of 3B shape, {chip}", "≤ 12", str(calls), calls <= 12
        )
        yield Row(f"of that memory wasted, {chip}", "< 2 %", f"{waste:.2%}", waste < 0.02)
        read, file = told["read"], told["file"]
        text = f"{read / 1e9:.2f} GB of {file / 1e9:.2f}: {read / file:.2f} times the file's"
        yield Row(f"weights read for a token, Q4_K_M of 3B shape, {chip}", "said", text)
        if told["seconds"]:
            share = read / told["seconds"] / BANDWIDTH
            text = f"{share:.0%}: {told['launches']} launches, {told['seconds']:.3f} s"
            yield Row(f"share of 44 GB/s in virtual time, the same, {chip}", "said", text)
    path.unlink()
    told = chips.measure("310B", "loads", ORACLES / "stories260K.gguf", LOADS)["reserved"]
    growth = told[-1] - told[2]
    yield Row(f"bytes more after {LOADS} loads", "0", str(growth), growth <= 0)


def mixtures(chips: Chips) -> Iterator[Row]:
    """Of experts as many as qwen3moe's, a quarter as wide and high."""
    path = chips.folder / "experts.gguf"
    write_qwen3moe(path, EXPERTS, lambda name: F32 if "gate_inp" in name else BY_NAME["q4_0"])
    for chip in CHIPS[1:]:
        few, whole = chips.measure(chip, "mixture", path)
        for what, key in (("weights", "weights"), ("read and written for a token", "bytes")):
            text = f"{few[key] / 1e6:.0f} MB, as float16 {whole[key] / 1e6:.0f}"
            less = few[key] < {"310P": 0.6, "910B": 0.4}[chip] * whole[key]
            yield Row(f"{what}, 8 of 128 experts, Q4_0, {chip}", "less", text, less)
        text = f"{few['launches']} launches, as float16 {whole['launches']}"
        yield Row(f"a token of the same, {chip}", "said", text)
    path.unlink()


def steps(chips: Chips) -> Iterator[Row]:
    """Of decoding with 24 layers of qwen2's shape."""
    path = chips.folder / "deep.gguf"
    write_qwen2(path, layers=24)
    for chip, dtype in (("910B", "auto"), ("910B", "f16"), ("310P", "auto"), ("310B", "auto")):
        ways = ["single", "fused", *(["recorded"] if chip == "910B" else [])]
        told = {how: chips.measure(chip, "decode", path, how, dtype) for how in ways}
        yield from _steps(f"{chip}, f16" if dtype == "f16" else chip, told)
    path.unlink()
    write_qwen2(path, size=Size(24, wide=896, inner=512, heads=14, kv=2))
    for dtype in ("auto", "f16"):
        told = chips.measure("910B", "depth", path, dtype)
        rows, blocks = told["rows"], told["blocks"]
        less = rows["launches"] - blocks["launches"]
        name = "910B, f16" if dtype == "f16" else "910B"
        text = f"{blocks['launches']} launches, {blocks['bytes'] / 1e6:.0f} MB; where rows are"
        text += f" gathered {rows['launches']}, {rows['bytes'] / 1e6:.0f} MB"
        yield Row(f"a token after 2,048, in blocks, {name}", "fewer", text, less > 0)
    path.unlink()


def _steps(name: str, told: dict[str, Any]) -> Iterator[Row]:
    single, fused = (told[how]["per step"] for how in ("single", "fused"))
    less = 1 - fused / single
    ms = ", ".join(f"{how} {t['busy'] * 1e3:.2f} ms" for how, t in told.items())
    text, goal = f"{single}, fused {fused}: {less:.0%} fewer", "30 % fewer"
    yield Row(f"launches for a token, 24 layers, {name}", goal, text, less >= 0.3)
    yield Row(f"their virtual time, {name}", "", ms)
    made = max(t["made"] for t in told.values())
    what = "descriptors, executors, pieces of memory made for a token"
    yield Row(f"{what}, {name}", "0", f"{made:g}", made == 0)
    waits = [t["synchronises"] for t in told.values()]
    ours = "; ".join(f"{n:g}" for n in dict.fromkeys(waits))
    yield Row(f"host synchronisations for a token, {name}", "1", ours, set(waits) == {1})
    for how, t in list(told.items())[1:]:
        launched = 1 if how == "recorded" else fused
        found, most = t["calls"], launched + 4
        what = f"foreign calls for a token, {how}, {name}"
        yield Row(what, f"≤ {launched} + 4", str(found), found <= most)
    cost = told["fused"]["seconds per call"] * 1e6
    yield Row(f"host time of each, {name}", "< 3 us", f"{cost:.2f} us", cost < 3)


def claims(chips: Chips) -> Iterator[Row]:
    """What runs on a chip."""
    files = [ORACLES / f"{name}.gguf" for name in (*MODELS, *QUANTISED)]
    told = chips.measure("310B", "whole", *(f for f in files if f.stem in QUANTISED))
    splits = max(model["splits"] for model in told.values())
    yield Row("splits, llama of K-quants, 310B", "1", str(splits), splits == 1)
    answers = chips.measure("910B", "operations")
    no = {name: why for name, every in answers.items() for why in every if why[:2] == "no"}
    refused = {name for name in no if all(why[:2] == "no" for why in answers[name])}
    reasons = "; ".join(f"{name} ({why.partition(': ')[2]})" for name, why in no.items())
    share = f"{len(answers) - len(refused)} of {len(answers)}; refused: {reasons}"
    yield Row("operations claimed, 910B", "all needed", share, refused <= AHEAD)
    told = chips.measure("910B", "whole", *files)
    whole = sum(not model["elsewhere"] and model["splits"] == 1 for model in told.values())
    text = f"{whole} of {len(told)}"
    yield Row("models wholly in one split, 910B", "all", text, whole == len(told))


def caches() -> Iterator[Row]:
    """Memory of paged caches."""
    for count in MIXED:
        tokens, share, _, _ = memory_of_sequences(count)
        most = most_of(count)
        whole = 2 * LAYERS * 2 * 128 * 2 * 2048 * count / 1e6  # MB of that shape's keys, values
        text = f"{share:.0%}: {share * whole:.0f} of {whole:.0f} MB in a model of 3B shape"
        what = f"cache of {count} sequences with {tokens} tokens, of 2,048 each"
        yield Row(what, f"< {most:.0%}", text, share < most)


def main() -> int:
    print("Counts of the simulator and its virtual clock; host time is this machine's.\n")
    print("| | goal | ours |\n|---|---|---|")
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        chips = Chips(Path(folder))
        for rows in (memory(chips), mixtures(chips), steps(chips), claims(chips), caches()):
            for row in rows:
                mark = "" if row.reached else " **missed**"
                print(f"| {row.what} | {row.goal} | {row.ours}{mark} |", flush=True)
                missed += [] if row.reached else [row.what]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
