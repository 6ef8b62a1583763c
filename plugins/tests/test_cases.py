"""The list of cases is whole, and its arrays are what they say."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from umbel.gguf.types import BF16, BY_NAME, DECODABLE, F16, F32, dequantise
from umbel.graph import MASKED, Role
from umbel.ops import OPS
from umbel_kit.cases import CASES, EXACT, WEIGHTS, Arg, Case, arrays, draw, graph, laid_out
from umbel_kit.conformance.perf import timed_cases

COMPUTED = sorted(name for name, op in OPS.items() if not op.view)
FLOATS = (F32, F16, BF16)
OF: dict[str, list[Case]] = defaultdict(list)
for _case in CASES:
    OF[_case.op].append(_case)


@pytest.mark.parametrize("op", COMPUTED)
def test_every_operation(op):
    """Whatever computes has cases: many sizes, strided inputs, nothing at all."""
    found = OF[op]
    assert len(found) >= 5
    sizes = {a.shape for c in found for a in c.args}
    assert any(n % 2 and n > 1 for shape in sizes for n in shape)
    strided = [c for c in found if any(a.layout != "plain" for a in c.args)]
    assert strided, f"{op} gets no strided input"
    assert any(0 in a.shape for c in found for a in c.args) or op == "kv_attention"


@pytest.mark.parametrize("op", COMPUTED)
def test_values_that_break(op):
    """Edges, infinities and NaN, where the operation takes floats and there is a rule."""
    kinds = {a.values for c in OF[op] for a in c.args}
    junk = {"set_rows": "alike", "kv_attention": "junk", "ssm_scan": "junk"}
    if op in junk:
        assert junk[op] in kinds
    elif op not in ("rope_cos_sin", "flash_attn_ext"):
        assert kinds & {"lost", "infinite"}


def test_no_others():
    """Each case is of an operation that exists, and there are no two of one name."""
    assert set(OF) == set(COMPUTED)
    twice = [name for name, n in Counter(map(str, CASES)).items() if n > 1]
    assert twice == []


def test_every_dtype():
    """Weights of every type that can be decoded, in products and as tables."""
    assert set(WEIGHTS) - {"f32", "f16", "bf16"} == {
        name for name in DECODABLE if BY_NAME[name].quantised
    }
    for op in ("mul_mat", "get_rows"):
        assert {c.args[0].dtype for c in OF[op]} >= set(WEIGHTS)


def test_every_layout_and_role():
    """Views on activations, weights and state; four axes; integers that are moved."""
    layouts = {a.layout for c in CASES for a in c.args}
    assert layouts == {"plain", "turned", "heads", "window", "rows", "joined"}
    kept = defaultdict(set)
    for case in CASES:
        for arg in case.args:
            kept[arg.role].add(arg.layout)
    assert kept[Role.WEIGHT] >= {"rows", "window", "joined"}
    assert kept[Role.STATE] >= {"rows", "joined"}
    four = {c.op for c in CASES if any(len(a.shape) == 4 for a in c.args)}
    moved = {c.op for c in CASES if c.args[0].dtype == "i32"}
    assert {"add", "silu", "concat", "mul_mat", "get_rows", "sum_rows", "norm"} <= four
    assert {"concat", "cont", "cast"} <= moved


@pytest.mark.parametrize("compute", FLOATS, ids=str)
def test_views_hold_the_arrays(compute):
    """Read through its offset and strides, the memory of a leaf is the array of the case."""
    tried = 0
    for case in CASES:
        if all(a.layout == "plain" for a in case.args):
            continue
        made = graph(case, OPS, lambda arg: arg.stored_in(compute))
        for t, arg, array in zip(
            made.outputs[0].inputs, case.args, arrays(case, compute), strict=True
        ):
            memory = np.ascontiguousarray(laid_out(arg, array)).reshape(-1).view(np.uint8)
            assert memory.size == t.storage.nbytes
            if not t.size:
                continue
            unit = np.dtype((np.void, t.dtype.block_bytes))
            blocks = (*t.shape[:-1], t.shape[-1] // t.dtype.block)
            seen = np.ndarray(blocks, unit, memory, t.offset, t.strides)
            assert seen.tobytes() == np.ascontiguousarray(array).tobytes(), case
            tried += 1
    assert tried > 300


def test_the_same_in_every_run():
    """Drawn by its name: twice the same, and for another name something else."""
    case = Case("add", (Arg((3, 4)), Arg((3, 4))))
    one, two = arrays(case, F32), arrays(case, F32)
    assert all(map(np.array_equal, one, two))
    other = arrays(Case("add", case.args, note="other"), F32)
    assert not np.array_equal(one[0], other[0])
    assert float(one[0][0, 0]) == pytest.approx(float(arrays(case, F32)[0][0, 0]))


@pytest.mark.parametrize("compute", FLOATS, ids=str)
def test_values(compute):
    """What the names of values promise, in each dtype."""

    def drawn(values: str, shape: tuple[int, ...] = (6, 40)) -> np.ndarray:
        raw = draw(Arg(shape, values=values), compute, np.random.default_rng(1))
        return dequantise(raw, compute)

    assert np.isfinite(drawn("normal")).all()
    assert (drawn("positive") > 0).all()
    assert (drawn("negative") < 0).all()
    assert np.square(drawn("large").astype(np.float64)).max() > 65504
    assert np.isfinite(drawn("large")).all()
    assert len(np.unique(drawn("ties"))) == 5
    assert (drawn("alike") == drawn("alike")[0]).all()
    assert {np.inf, -np.inf} < set(drawn("infinite").ravel().tolist())
    assert (drawn("lowered")[0] == -np.inf).all()
    assert np.isfinite(drawn("lowered")[1:]).any(axis=1).all()
    assert np.isnan(drawn("lost")).any(axis=1).tolist() == [True, *[False] * 5]
    assert (drawn("hidden") <= MASKED / 2).all()
    assert ((drawn("barely") < 0) == (drawn("mask") < 0)).all()
    assert drawn("barely").min() == pytest.approx(MASKED / 2, rel=3e-2)
    assert drawn("barely").min() <= MASKED / 2
    assert drawn("distances").min() == pytest.approx(MASKED, rel=1e-2)
    assert drawn("normal", (3, 0)).shape == (3, 0)


@pytest.mark.parametrize("case", [c for c in CASES if c.note == "junk"], ids=str)
def test_junk(case):
    """NaN in the rows of state that no index names, and in no other."""
    made = arrays(case, F32)
    named = set(np.concatenate([a.ravel() for a in made if a.dtype == np.int32]).tolist())
    for arg, array in zip(case.args, made, strict=True):
        if arg.role is Role.STATE:
            values = dequantise(array, BY_NAME[arg.dtype]).reshape(len(array), -1)
            lost = {i for i, row in enumerate(values) if np.isnan(row).any()}
            assert lost == set(range(len(array))) - named


@pytest.mark.parametrize("case", OF["kv_attention"], ids=str)
def test_tables_end_with_the_own_cells(case):
    """As a plan has them: the cells of this step last, and nowhere else."""
    cells, table = arrays(case, F32)[5:7]
    own = len(cells) // len(table)
    assert table[:, -own:].ravel().tolist() == cells.tolist()
    assert not np.isin(table[:, :-own], cells).any()


def test_stored():
    """What decides about the limit of a product: its weight or cache."""
    weight = Arg((4, 32), "q4_0", Role.WEIGHT)
    assert Case("mul_mat", (weight, Arg((1, 32)))).stored == "q4_0"
    assert Case("mul_mat", (Arg((4, 32)), Arg((1, 32)))).stored == "f32"
    caches = Arg((9, 32), "q8_0", Role.STATE), Arg((9, 32), "f16", Role.STATE)
    assert Case("kv_attention", caches).stored == "q8_0"
    norm = Case("rms_norm", (Arg((3, 8)), Arg((8,), "f32", Role.WEIGHT)))
    assert norm.stored == "f32"


def test_exact_inputs():
    """Factors of rope are the only inputs that are not rounded."""
    assert EXACT == {"rope": (2,), "rope_cos_sin": (1,)}
    for op, places in EXACT.items():
        whole = [c for c in OF[op] if len(c.args) > places[0]]
        assert whole
        assert all(c.args[places[0]].role is Role.WEIGHT for c in whole)


@pytest.mark.parametrize("timed", list(timed_cases()), ids=str)
def test_timed_cases_are_calls(timed):
    """What is timed fits the operation's rule."""
    made = graph(timed.case, OPS, lambda arg: arg.stored_in(F32))
    assert made.outputs[0].size > 0


def test_timed_cases():
    """Products of both sizes in the usual dtypes, and what else a layer does."""
    titles = [t.title for t in timed_cases()]
    assert len(titles) == len(set(titles))
    for n in ("decode of 1", "prefill of 128"):
        for dtype in ("f32", "f16", "q4_0", "q8_0", "q4_k"):
            assert f"mul_mat {dtype} 4096x2048, {n}" in titles
    ops = {t.case.op for t in timed_cases()}
    assert ops == {
        *("mul_mat", "rms_norm", "norm", "rope", "soft_max", "swiglu"),
        *("kv_attention", "ssm_scan"),
    }
