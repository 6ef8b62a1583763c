"""Attention, soft maximum, rope, and rows of caches: every set of kernels conforms, and the
bits of a row depend on nothing beside it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
from umbel.gguf.types import BY_NAME, F32, I32, DType, quantise
from umbel.graph import MASKED, Builder, Role, Tensor
from umbel.hookspecs import Device, DeviceInfo, Slot, SplitGraph
from umbel.ops import OPS
from umbel.plan import Target
from umbel_kit import cases
from umbel_kit.device import prepare, refusal, trial
from umbel_numa.engine import Engine
from umbel_numa.library import variants
from umbel_numa.memory import NativeMemory
from umbel_numa.support import unsupported

OWN = {"soft_max", "flash_attn_ext", "kv_attention", "rope", "rope_cos_sin", "set_rows"}
USABLE = [name for name, runs in variants().items() if runs]
CELLS = 700  # of the caches
H, HKV, HD, HV = 6, 2, 64, 32
_uids = itertools.count(1 << 50)


@pytest.fixture(params=USABLE)
def kernels(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(kernels: str) -> Iterator[Engine]:
    engine = Engine(1, kernels=kernels)
    yield engine
    engine.close()


@attrs.frozen
class Arg:
    """An input: `array` as it is stored in `dtype`."""

    array: np.ndarray
    dtype: DType = F32
    role: Role = Role.INPUT

    def leaf(self, build: Builder, name: str) -> Tensor:
        shape = self.array.shape
        if self.dtype.quantised:
            shape = (*shape[:-1], shape[-1] // self.dtype.block_bytes * self.dtype.block)
        return build.leaf(self.role, name, shape, self.dtype)


def ids(values: Sequence[int] | np.ndarray) -> Arg:
    return Arg(np.array(values, np.int32), I32)


def compute(engine: Engine, op: str, *args: Arg, **how: Any) -> np.ndarray:
    """The result of one operation; states are changed in place."""
    build, memory = Builder(OPS), NativeMemory(engine)
    leaves = [arg.leaf(build, f"in{i}") for i, arg in enumerate(args)]
    node = build.apply(OPS[op], *leaves, **how)
    slots = {}
    for t, arg in zip(leaves, args, strict=True):
        slots[t] = Slot(memory.allocate(t.nbytes, "input"))
        slots[t].buffer.write(0, arg.array)
    slots.setdefault(node.storage, Slot(memory.allocate(node.nbytes, "compute")))
    split = SplitGraph(next(_uids), (node,), tuple(leaves), (node,), slots)
    engine.compute(split)
    engine.forget(split.uid)
    for t, arg in zip(leaves, args, strict=True):
        if t.role is Role.STATE:
            raw = slots[t].buffer.read(0, t.nbytes)
            arg.array[...] = raw.view(arg.array.dtype).reshape(arg.array.shape)
    raw = slots[node.storage].buffer.read(0, node.nbytes)
    return raw.view(np.float32).reshape(node.shape) if node.dtype is F32 else raw


def test_conforms(engine: Engine) -> None:
    """All cases of the kit, none of which is refused."""
    hooks = SimpleNamespace(
        op_supported=lambda _, node: unsupported(node, engine),
        graph_compute=lambda _, graph: engine.compute(graph),
        sync=lambda _: None,
        forget=lambda _, uid: engine.forget(uid),
    )
    info = DeviceInfo(memory_total=1 << 30, memory_free=1 << 30)
    target = Target(Device("numa:0", "", 1), info, NativeMemory(engine), hooks)
    ran = 0
    for case in cases.CASES:
        if case.op in OWN:
            call = prepare(case, target, OPS)
            assert refusal(call, target) is None, str(case)
            assert trial(call, target) == "", str(case)
            ran += 1
    assert ran > 150


# sequences over a cache


@attrs.frozen
class Text:
    """Queries, keys and values of the tokens of one sequence, and their cells."""

    q: np.ndarray  # (n, H, HD)
    k: np.ndarray
    v: np.ndarray
    cells: np.ndarray

    @classmethod
    def of(cls, seed: int, n: int, first_cell: int) -> Text:
        rng = np.random.default_rng(seed)
        shapes = (n, H, HD), (n, HKV, HD), (n, HKV, HV)
        q, k, v = (rng.standard_normal(shape, np.float32) for shape in shapes)
        return cls(q, k, v, np.arange(first_cell, first_cell + n, dtype=np.int32))


@attrs.define
class Caches:
    dtype: str
    arrays: list[np.ndarray] = attrs.field(init=False)
    sinks: bool = False

    def __attrs_post_init__(self) -> None:
        dtype = BY_NAME[self.dtype]
        values = [np.full((CELLS, HKV * n), np.nan, np.float32) for n in (HD, HV)]
        if dtype.quantised:
            self.arrays = [np.full_like(quantise(v, dtype), 0xFF) for v in values]
        else:
            self.arrays = [v.astype(dtype.numpy) for v in values]

    def step(
        self, engine: Engine, batch: Sequence[tuple[Text, int]], tokens: int, padding: int = 0
    ) -> np.ndarray:
        """So many tokens more of each text, of which `past` are known: (S, tokens, H*HV)."""
        length = max(past for _, past in batch) + tokens + padding
        table = np.zeros((len(batch), length), np.int32)
        mask = np.full((len(batch), 1, tokens, length), MASKED, np.float32)
        for s, (text, past) in enumerate(batch):
            first = length - past - tokens
            table[s, first:] = text.cells[: past + tokens]
            mask[s, 0, :, first:][np.tri(tokens, past + tokens, past, dtype=bool)] = 0
        new = [(text, slice(past, past + tokens)) for text, past in batch]
        q, k, v = (
            Arg(np.stack([getattr(text, name)[part] for text, part in new])) for name in "qkv"
        )
        caches = [Arg(a, BY_NAME[self.dtype], Role.STATE) for a in self.arrays]
        cells = ids(np.concatenate([text.cells[part] for text, part in new]))
        args = [q, k, v, *caches, cells, ids(table), Arg(mask)]
        if self.sinks:
            args.append(Arg(np.linspace(-1, 2, H, dtype=np.float32)))
        out = compute(engine, "kv_attention", *args, scale=HD**-0.5)
        return out.reshape(len(batch), tokens, H * HV)


def pieces(engine: Engine, caches: Caches, text: Text, sizes: Sequence[int]) -> np.ndarray:
    """A whole text, in steps of these sizes, the last of which is repeated."""
    done, rows = 0, list[np.ndarray]()
    for size in itertools.chain(sizes, itertools.repeat(sizes[-1])):
        size = min(size, len(text.cells) - done)
        if not size:
            break
        rows.append(caches.step(engine, [(text, done)], size)[0])
        done += size
    return np.concatenate(rows)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_pieces_make_no_difference(engine: Engine, dtype: str) -> None:
    """Prefill at once, in pieces and token by token; what is not written yet holds NaN."""
    text = Text.of(0, 333, 5)
    whole = pieces(engine, Caches(dtype), text, [333])
    assert np.isfinite(whole).all()
    for sizes in ([64], [3], [300, 1], [1, 130, 2, 77]):
        assert np.array_equal(whole, pieces(engine, Caches(dtype), text, sizes)), sizes


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("threads", [2, 3, 4])
def test_threads_neighbours_and_padding_make_no_difference(dtype: str, threads: int) -> None:
    """Also where the chunks of a head go to several threads."""
    texts = [Text.of(i, 301, 1 + 310 * i) for i in range(2)]
    one, many = Engine(1), Engine(threads)
    alone = [Caches(dtype, sinks=True) for _ in texts]
    for caches, text in zip(alone, texts, strict=True):
        pieces(one, caches, text, [300])
    expected = [c.step(one, [(t, 300)], 1)[0] for c, t in zip(alone, texts, strict=True)]
    both = Caches(dtype, sinks=True)
    for text in texts:
        pieces(many, both, text, [300])
    for padding in (0, 1, 77, 300):
        found = both.step(many, [(t, 300) for t in texts], 1, padding)
        single = both.step(many, [(texts[1], 300)], 1, padding)[0]
        assert np.array_equal(np.stack(expected), found), padding
        assert np.array_equal(expected[1], single), padding
    uneven = both.step(many, [(texts[0], 300), (texts[1], 7)], 1)
    assert np.array_equal(expected[0], uneven[0])
    one.close()
    many.close()


def test_all_kernels_give_the_same_bits() -> None:
    results = []
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 5, 333), np.float32)
    for name in USABLE:
        engine, text = Engine(1, name), Text.of(1, 200, 3)
        found = [pieces(engine, Caches("f16"), text, [195, 1])]
        found.append(compute(engine, "soft_max", Arg(x)))
        angles = compute(
            engine, "rope_cos_sin", ids([0, 5, 70000]), n_dims=64, freq_scale=0.3, freq_base=1e6
        )
        found.append(angles)
        results.append(np.concatenate([f.ravel() for f in found]))
        engine.close()
    for result in results[1:]:
        assert np.array_equal(results[0], result)


def test_what_is_hidden_gives_nothing(engine: Engine) -> None:
    """NaN in keys and values that one query sees does not reach one that does not."""
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((1, 2, 40, 16), np.float32) for _ in range(3))
    mask = np.where(np.tri(40, dtype=bool), 0, MASKED).astype(np.float32)[None, None]
    clean = compute(engine, "flash_attn_ext", *map(Arg, (q, k, v, mask)), scale=0.25)
    k[:, :, 30:], v[:, :, 30:] = np.nan, np.inf
    mask[..., 35, :] = MASKED
    found = compute(engine, "flash_attn_ext", *map(Arg, (q, k, v, mask)), scale=0.25)
    assert np.array_equal(clean[:, :30], found[:, :30])
    assert not found[:, 35].any()


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize(("hd", "hv"), [(24, 32), (24, 40), (40, 24)])
def test_nan_stays_in_its_sequence(engine: Engine, tokens: int, hd: int, hv: int) -> None:
    """Also where the keys of the next one, filled up, take the place of its values."""
    rng = np.random.default_rng(hd + hv)
    shapes = (2, 1, tokens, hd), (2, 1, 150, hd), (2, 1, 150, hv)
    q, k, v = (rng.standard_normal(shape, np.float32) for shape in shapes)
    clean = compute(engine, "flash_attn_ext", *map(Arg, (q, k, v)), scale=0.2)
    k[0], v[0] = np.nan, np.nan
    found = compute(engine, "flash_attn_ext", *map(Arg, (q, k, v)), scale=0.2)
    assert np.array_equal(clean[1], found[1])


@pytest.mark.parametrize(("hd", "hv"), [(1, 7), (20, 17), (40, 24), (130, 72)])
def test_heads_of_odd_sizes(engine: Engine, hd: int, hv: int) -> None:
    rng = np.random.default_rng(hd)
    q = rng.standard_normal((1, 3, 2, hd), np.float32)
    k, v = (rng.standard_normal((1, 1, 150, n), np.float32) for n in (hd, hv))
    how = {"scale": hd**-0.5, "logit_softcap": 3.0}
    expected = OPS["flash_attn_ext"].reference(q, k, v, **how)
    found = compute(engine, "flash_attn_ext", *map(Arg, (q, k, v)), **how)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("group", [16, 17, 40])
def test_many_heads_share_one_of_keys(engine: Engine, group: int) -> None:
    rng = np.random.default_rng(group)
    q = rng.standard_normal((1, group, 2, 32), np.float32)
    k, v = (rng.standard_normal((1, 1, 150, 32), np.float32) for _ in range(2))
    expected = OPS["flash_attn_ext"].reference(q, k, v, scale=0.2)
    found = compute(engine, "flash_attn_ext", *map(Arg, (q, k, v)), scale=0.2)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("place", [0, 31])
def test_a_q8_0_block_with_nan_is_nan(engine: Engine, place: int) -> None:
    rows, state = np.ones((2, 32), np.float32), np.zeros((2, 34), np.uint8)
    rows[1, place] = np.nan
    compute(engine, "set_rows", Arg(state, BY_NAME["q8_0"], Role.STATE), Arg(rows), ids([0, 1]))
    assert np.isnan(state[:, :2].copy().view(np.float16)).tolist() == [[False], [True]]


def test_q8_0_rows_are_those_of_the_package(engine: Engine) -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((500, 64), np.float32) * np.float32(3.7)
    rows[0], rows[1, :32], rows[2, :9] = 0, 1e-30, np.arange(9) + 0.5
    rows[2, 9:] = 127
    state = np.zeros((500, 68), np.uint8)
    places = rng.permutation(500)
    compute(engine, "set_rows", Arg(state, BY_NAME["q8_0"], Role.STATE), Arg(rows), ids(places))
    assert np.array_equal(state[places], quantise(rows, BY_NAME["q8_0"]))


@pytest.mark.parametrize("mode", ["norm", "neox"])
def test_rope_is_exact(engine: Engine, mode: str) -> None:
    """As the reference has it, far positions too."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((4, 3, 80), np.float32)
    where = np.array([0, 17, 131071, 10_000_000], np.int32)
    how = {"n_dims": 64, "mode": mode, "freq_base": 500000.0, "freq_scale": 1 / 3}
    how |= {"ext_factor": 1.0, "n_ctx_orig": 8192}
    expected = OPS["rope"].reference(x, where, **how)
    np.testing.assert_allclose(
        compute(engine, "rope", Arg(x), ids(where), **how), expected, rtol=1e-6, atol=3e-7
    )
