"""Products of more rows and longer ones than some chips take, against the host's. Prints how
many launches of each kind of product there were."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
from umbel.gguf.types import F16
from umbel.graph import Builder, Role, Tensor
from umbel.hookspecs import Slot, SplitGraph
from umbel.ops import OPS
from umbel_cann.acl.toolkit import toolkit
from umbel_cann.opened import Opened

SHAPES = {
    "w": (2, 33, 9000),
    "x": (2, 70, 9000),
    "w0": (33, 9000),
    "x0": (70, 9000),
    "q": (1, 4, 70, 16),
    "k": (1, 2, 4352, 16),
    "v": (1, 2, 4352, 16),
}
opened = Opened.new(toolkit(), 0, "auto", 60.0)
kind, rng, b = opened.memory, np.random.default_rng(0), Builder(OPS)
given = {n: rng.standard_normal(s).astype(np.float16) for n, s in SHAPES.items()}
given |= {name: given[name[0]][0] for name in ("w0", "x0")}
leaves = {n: Tensor(a.shape, F16, Role.INPUT, n) for n, a in given.items()}
made = [b.mul_mat(leaves["w"], leaves["x"]), b.mul_mat(leaves["w0"], leaves["x0"])]
made.append(b.flash_attn_ext(*(leaves[n] for n in "qkv"), scale=0.25))
every = (*leaves.values(), *made)
slots = {t: Slot(kind.allocate(kind.alloc_size(t), "compute")) for t in every}
for name, t in leaves.items():
    slots[t].buffer.write(0, given[name])
opened.programs.run(SplitGraph(1, tuple(made), tuple(leaves.values()), tuple(made), slots))
opened.sync()
got = [slots[t].buffer.read(0, t.nbytes).view(np.float16).reshape(t.shape) for t in made]
for t, found in zip(made, got, strict=True):
    arrays = (given[leaf.name].astype(np.float32) for leaf in t.inputs)
    expected = t.op.reference(*arrays, **t.attrs)
    error = np.square(found - expected).mean() / np.square(expected).mean()
    assert error < 2e-6, (t.op.name, error)
(program,) = opened.programs.made.values()
counts = Counter(launch.operator for launch in program.launches)
same = bool((got[0][0] == got[1]).all())
print(json.dumps({"Mm": counts["Mm"], "BatchMatMul": counts["BatchMatMul"], "same": same}))
opened.close()
