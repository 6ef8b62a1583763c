"""Cells in blocks: when they are, what attention is told of them; and that it is the same."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_in import npu
from stepping import Size, write_qwen2
from umbel.gguf.types import F16, I32
from umbel.graph import Role, Tensor
from umbel.state.cache import Cache, Sequence
from umbel_cann.chips import chip
from umbel_cann.memory import BLOCK, NpuMemory
from umbel_cann.paging import Laid, in_blocks
from umbel_cann.probing.maker import Maker
from umbel_cann.probing.special import attention

HERE = Path(__file__).parent
Run = Callable[..., subprocess.CompletedProcess[str]]


def table_of(*rows: list[int], length: int = 2 * BLOCK, after: int = 0) -> np.ndarray:
    """As the core writes it: cells end where the step does, but for padding tokens after it."""
    table = np.zeros((len(rows), length), np.int32)
    for row, cells in zip(table, rows, strict=True):
        row[length - after - len(cells) : length - after] = cells
    return table


def block(number: int, count: int = BLOCK) -> list[int]:
    return list(range(number * BLOCK, number * BLOCK + count))


@pytest.mark.parametrize("n", [1, 127, 128, 129, 200, 255, 256])
@pytest.mark.parametrize("after", [0, 3])
def test_what_is_in_blocks(n: int, after: int) -> None:
    """Of two sequences and one that is none: where each cell and its column of the mask are."""
    cells = [*block(5), *block(3)][: max(n - after, 1)], block(9, 1), []
    found = in_blocks(table := table_of(*cells, after=after))
    assert found is not None
    second = 3 if len(cells[0]) > BLOCK else 0
    assert found.table.tolist() == [[5, second], [9, 0], [0, 0]]
    assert (found.table.dtype, found.order.dtype) == (np.int32, np.int32)
    assert sorted(found.order.flat) == list(range(table.size))
    columns = table.reshape(-1)[found.order]
    for s, own in enumerate(cells):
        assert columns[s, : len(own)].tolist() == own
        assert not columns[s, len(own) :].any()


@pytest.mark.parametrize(
    "cells",
    [
        [*block(5, 100), *block(6, 9)],  # as a fork goes on
        block(5)[1:],  # as what is left of a shifted context
        [*block(5, 64), *block(6)[64:], *block(7, 3)],
        [*block(5), 1, 2, 3],  # when no block was free
        [1, 2, 3],
        [*block(5)[::-1]],
    ],
)
def test_what_is_not(cells: list[int]) -> None:
    assert in_blocks(table_of(block(9, 7), cells)) is None


def test_rows_that_lengths_ask_for() -> None:
    """Of sequences as long as each other; not of mixed ones, nor of what is shared."""
    alike = in_blocks(table_of(*(block(i, 100) for i in (1, 2, 3))))
    assert alike is not None
    assert alike.rows == 6 * BLOCK
    long = [c for i in range(4, 12) for c in block(i)]
    mixed = in_blocks(table_of(block(1, 3), block(2, 3), long, length=8 * BLOCK))
    assert mixed is not None
    assert mixed.rows == 0
    shared = ([*long[:-BLOCK], *block(i)] for i in (20, 21, 22))
    forks = in_blocks(table_of(*shared, length=8 * BLOCK))
    assert forks is not None
    assert forks.rows == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400)), max_size=30), st.booleans())
def test_sequences_of_the_core(steps: list[tuple[int, int]], forks: bool) -> None:
    """Whatever is written and cut, cells are in blocks while there are whole ones; with forks
    it is told right, however they lie."""
    cache, sequences = Cache(BLOCK * 64, 0, block=BLOCK), [Sequence() for _ in range(4)]
    for which, n in steps:
        sequence = sequences[which % 4]
        if which == 4:
            cache.rewind(sequence, n)
        elif which == 5 and forks:
            sequences[n % 4], gone = cache.fork(sequence), sequences[n % 4]
            cache.close(gone)
        elif n + len(sequence) <= 16 * BLOCK - 64:
            cache.commit(sequence, [0] * n, cache.begin(sequence, n))
    rows = [s.cells.tolist() for s in sequences]
    found = in_blocks(table := table_of(*rows, length=16 * BLOCK))
    assert found is not None or forks
    if found is not None:
        columns = table.reshape(-1)[found.order]
        places = (found.table[..., None] * BLOCK + np.arange(BLOCK)).reshape(columns.shape)
        np.testing.assert_array_equal(columns, np.where(columns > 0, places, 0))
        for own, cells in zip(columns, rows, strict=True):
            assert own[: len(cells)].tolist() == cells


def test_where_they_are_written() -> None:
    """Beside each other, within their memory."""
    memory = NpuMemory(npu(), chip("Ascend910B3"), F16)
    laid = Laid.new(memory, Tensor((3, 512), I32, Role.INPUT, "table"))
    found = in_blocks(table_of([], block(2, 5), block(4), length=512))
    assert found is not None
    laid.put(memory.npu, found)
    assert (laid.table.shape, laid.order.shape) == ((3, 4), (3 * 512,))
    assert laid.table.end <= laid.order.start
    assert laid.order.end <= laid.region.address + laid.region.nbytes


def attended(seen: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Of heads (1, T, N, D), two for each of keys, over what is seen (1, ., T, L)."""
    wide = (t.astype(float).repeat(q.shape[2] // t.shape[2], 2)[0] for t in (q, k, v))
    queries, keys, values = (t.swapaxes(0, 1) for t in wide)
    weights = np.where(seen[0], np.exp(queries @ keys.swapaxes(1, 2) / 8), 0)
    out = weights / weights.sum(-1, keepdims=True) @ values
    return np.asarray(out.swapaxes(0, 1)[None])


def test_probes_tell_what_loses_a_mask() -> None:
    """A kernel that stops at 512 keys, sees what is hidden, or takes another block."""
    for step in (step for probe in attention(Maker("f16")) for step in probe.steps):
        q, k, v, added, hidden = (getattr(t, "arrays", [t])[0] for t in step[1:6])
        y, table = step[-2].after, step[15]
        if table is not None:
            k, v = (t[table[0]].reshape(1, -1, 2, 64) for t in (k, v))
        shown = ~hidden if added is None else added == 0
        first = np.arange(shown.shape[-1]) < 512
        assert np.abs(attended(shown, q, k, v) - y).max() < 1e-3
        lost = [
            attended(seen, q, k, v) for seen in (shown & first, shown | first, shown | ~first)
        ]
        for other in (*lost, attended(shown, q, k, np.roll(v, BLOCK, 1))):
            assert np.abs(other - y).max() > 0.02 * max(1.0, np.abs(y).max())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "narrow.gguf"
    write_qwen2(path, size=Size(2, wide=32, inner=32, heads=2, kv=1))
    return path


STEPS = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import numpy as np
import stepping
from umbel import plugins
from stepping import Sequence

runner = stepping.open_model(sys.argv[1], sys.argv[2], ctx=512, parallel=6)
cache, used = runner.cache, []

def told(able):
    stepping.blocks(able)
    found, now = [], [Sequence() for _ in range(5)]
    def prompt(s, n, every=False):
        found.append(runner.forward(s, [(7 * i + n) % 60 for i in range(n)], every=every))
        note()
    def decode(*sequences):
        found.append(runner.decode(list(sequences), [3 + i for i in range(len(sequences))]))
        note()
    def note():
        (_, blocks), program = list(stepping.programs().made.items())[-1]
        used.append(bool(blocks and program.laid))
    a, b, c, d, e = now
    prompt(a, 125)
    for _ in range(5):  # 126 to 130
        decode(a)
    prompt(a, 123)
    for _ in range(6):  # 254 to 259
        decode(a)
    prompt(b, 126)
    for s in (c, d, e):
        prompt(s, 2)
    for _ in range(4):
        decode(b, c)
    for _ in range(2):
        decode(c, d, e)
    decode(a, b, c, d, e)  # more than there is memory for, if all were as long as the longest
    for n in (3, 1, 5):  # drafts, and what is taken of them
        before = len(b)
        prompt(b, n, every=True)
        cache.rewind(b, before + 1 + n // 2)
        decode(b)
    cut = cache.fork(b)
    decode(b, cut)
    decode(cut)
    decode(b)
    cache.rewind(cut, 100)
    prompt(cut, 40)
    cache.rewind(a, 256)
    whole = cache.fork(a)
    decode(whole)
    decode(a)
    for s in (cut, whole, *now):
        cache.close(s)
    return found

talks = [told(True), told(False), told(True)]
same = [np.array_equal(x, y) and bool(np.isfinite(x).all()) for x, y in zip(*talks[:2])]
same += [np.array_equal(x, y) for x, y in zip(*talks[1:])]
print(json.dumps([same, used]))
runner.close()
plugins.get().close()
"""


@pytest.mark.parametrize("dtype", ["auto", "f16"])
def test_the_same_as_gathered(run: Run, model: Path, dtype: str) -> None:
    """To the last bit: prompts, tokens, drafts, forks, of several sequences, at the ends of
    blocks; and cells that were used before."""
    done = run("910B", "-c", STEPS, model, dtype)
    assert done.returncode == 0, done.stderr
    same, used = json.loads(done.stdout)
    assert all(same), same
    count = len(used) // 3
    first = "".join("b" if blocks else "-" for blocks in used[:count])
    mixed, forked = "-", "--b-bb"
    assert first == 23 * "b" + mixed + 6 * "b" + forked, first
    assert not any(used[count : 2 * count])
    assert used[2 * count :] == used[:count]


SHORT = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import stepping
from umbel import plugins
from umbel.errors import DeviceError

runner, found = stepping.open_model(sys.argv[1]), []
for able in (True, False):
    stepping.blocks(able)
    found.append(stepping.talk(runner, 2))
    laid = [p for p in stepping.programs().made.values() if p.laid]
    assert len(laid) == int(sys.argv[2]) or not able, laid
assert (found[0] == found[1]).all()
stepping.blocks(True)
stepping.fault("task=20")
try:
    stepping.talk(runner, 2)
except DeviceError:
    stepping.fault("")
assert (stepping.talk(runner, 2) == found[0]).all()
assert not list(stepping.programs().made)[-1][1]
runner.close()
plugins.get().close()
"""


@pytest.mark.parametrize(("fault", "laid"), [("symbol=aclnnGtScalar", 1), ("", 2)])
def test_where_rows_are_gathered(run: Run, model: Path, fault: str, laid: int) -> None:
    """Of a prompt, where what its mask needs is missing: a single token needs no such thing.
    After a fault, for who knows what it has left in a block."""
    given = {"fault": fault} if fault else {}
    done = run("910B", "-c", SHORT, model, laid, **given)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("by_whom", ["a step", "a file"])
def test_what_is_not_finite(run: Run, model: Path, by_whom: str) -> None:
    """One sequence's is never read by the next one that gets its block."""
    done = run("910B", HERE / "doubtful.py", model, by_whom)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == {"doubtful": True, "same": True, "placed": True}
    assert "keys and values are gathered from now on" in done.stderr


def test_memory_that_ends(run: Run, model: Path) -> None:
    """What a load took is enough, is kept when more is refused, and found when it is idle."""
    done = run("910B", HERE / "doubtful.py", model, "memory")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"ran": True, "kept": True, "found": True}


def test_a_cache_that_cannot_be_copied(run: Run, model: Path) -> None:
    done = run("910B", HERE / "doubtful.py", model, "copy")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"same": True}
