"""A layer of a model of real size: within the profile's limits, and with few moves of data."""

from __future__ import annotations

from collections import Counter

import pytest
from ane_fake import DEVICE, LENGTHS, TOKENS, Hooks, Memory
from ane_ports import Split
from umbel import loading
from umbel.gguf.types import F16, F32, I32
from umbel.graph import Builder, Graph, Role, Tensor
from umbel.hookspecs import DeviceInfo
from umbel.ops import OPS
from umbel.plan import Placer, Target
from umbel.plan.emit import place
from umbel.plan.split import cut
from umbel_ane.compiler.ir import Weight
from umbel_ane.compiler.lowered import Lowered
from umbel_ane.compiler.lowering import Options, lower
from umbel_ane.profile import load

EMBD, HEADS, KV, SIZE, FF = 4096, 32, 8, 128, 14336
ROPE = {"freq_base": 10000.0, "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0}


def layer(sequences: int, tokens: int, length: int, mode: str) -> Graph:
    """As `models/llama.py` writes it."""
    b, n = Builder(dict(OPS)), sequences * tokens

    def weight(name: str, *shape: int) -> Tensor:
        return b.leaf(Role.WEIGHT, name, shape, F16)

    def given(name: str, *shape: int) -> Tensor:
        return b.leaf(Role.INPUT, name, shape, I32)

    x = b.get_rows(weight("embd", 32000, EMBD), given("tokens", n))
    h = b.rms_norm(x, weight("norm", EMBD), eps=1e-5)
    made = []
    for name, heads in (("q", HEADS), ("k", KV), ("v", KV)):
        y = b.reshape(b.mul_mat(weight(name, heads * SIZE, EMBD), h), shape=(n, heads, SIZE))
        if name != "v":
            y = b.rope(y, given("positions", n), n_dims=SIZE, mode=mode, **ROPE)
        made.append(b.reshape(y, shape=(sequences, tokens, heads, SIZE)))
    caches = [b.leaf(Role.STATE, f"{c}_cache.0", (9000, KV * SIZE), F16) for c in "kv"]
    mask = b.leaf(Role.INPUT, "mask", (sequences, 1, tokens, length), F32)
    where = given("cells", n), given("table", sequences, length)
    y = b.kv_attention(*made, *caches, *where, mask, scale=SIZE**-0.5)
    x = b.add(x, b.mul_mat(weight("o", EMBD, HEADS * SIZE), y))
    h = b.rms_norm(x, weight("ffn_norm", EMBD), eps=1e-5)
    both = (b.mul_mat(weight(name, FF, EMBD), h) for name in ("gate", "up"))
    x = b.add(x, b.mul_mat(weight("down", EMBD, FF), b.swiglu(*both)))
    return b.graph([b.get_rows(x, given("out_ids", sequences))])


def whole(made: Graph) -> list[Lowered]:
    hooks = Hooks(load("orion-m4-macos15"), Options(attention="ane"))
    info = DeviceInfo(0, 0, "f16", TOKENS, LENGTHS, opaque=True)
    fake = Target(DEVICE, info, Memory(), hooks)
    placer = Placer([fake, *loading.targets("host", None, None, False)], dict(OPS))
    placed = place(made, placer, {})
    wanted = [t.storage for t in placed.outputs]
    wanted += [new.storage for _, new, _ in placed.row_writes]
    splits = [s for s in cut(placed.nodes, wanted) if s.target is fake]

    def weight_of(t: Tensor) -> Weight:
        return Weight(t.name, lambda: pytest.fail("a weight was read"))

    return [
        lower(Split(s.nodes, s.outputs), hooks.profile, weight_of, hooks.options)
        for s in splits
    ]


@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize(
    ("sequences", "tokens", "length"),
    [(1, 1, 256), (1, 1, 4096), (1, 4, 256), (1, 1024, 4096), (1, 256, 256), (4, 1, 1024)],
)
def test_a_layer(sequences: int, tokens: int, length: int, mode: str) -> None:
    """One graph; no weight is read for it; of one sequence no data is turned."""
    (lowered,) = whole(layer(sequences, tokens, length, mode))
    nodes = lowered.graph.nodes()
    assert max(max(n.shape) for n in nodes) <= 16384
    count = Counter(n.op for n in nodes)
    assert count["conv1x1"] == 7
    assert count["softmax"] == 1
    assert count["transpose"] <= (0 if sequences == 1 else 8)
    assert sum(count.values()) - count["const"] - count["input"] < 160
