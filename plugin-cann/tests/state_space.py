"""Run as a program, with a simulated chip: state space operations on it, and by reference.

Its argument is the dtype of values. It prints the squared error, relative to the squared size,
of ssm_conv over the shapes of llama.cpp's test and longer ones, and of ssm_scan.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from umbel import plugins
from umbel.loading import targets
from umbel.ops import OPS
from umbel.plan import Target
from umbel_kit.cases import Arg, Case
from umbel_kit.compare import nmse
from umbel_kit.conformance.inputs import ids, state, weight
from umbel_kit.device import Subject, prepare, refusal

# (K, channels, tokens, sequences)
CONVOLUTIONS = [
    (k, channels, tokens, sequences)
    for k in (3, 4)
    for channels in (1024, 1536, 2048)
    for tokens, sequences in ((1, 1), (k + 1, 1), (1, 4), (64, 1), (7, 4))
]
# (heads, channels of each, states, groups, decays, tokens, sequences), some in pieces
SCANS = [
    (1024, 1, 16, 1, 16, tokens, sequences)
    for tokens, sequences in ((1, 1), (1, 4), (7, 4), (300, 1))
]
SCANS += [
    (16, 32, 64, groups, 1, tokens, sequences)
    for groups in (1, 2)
    for tokens, sequences in ((1, 1), (1, 4), (7, 4), (12, 4), (65, 2))
]


def convolution(k: int, channels: int, tokens: int, sequences: int) -> Case:
    x = Arg((sequences, channels, k - 1 + tokens))
    return Case("ssm_conv", (x, weight((channels, k))))


def scan(h: int, p: int, n: int, g: int, decays: int, tokens: int, sequences: int) -> Case:
    b = Arg((sequences, tokens, g, n))
    x, dt = Arg((sequences, tokens, h, p)), Arg((sequences, tokens, h))
    a, kept = weight((h, decays), values="negative"), state((5, h, p, n), "f32")
    return Case("ssm_scan", (kept, x, dt, a, b, b, ids((sequences,), 5)))


def error(case: Case, target: Target) -> float:
    """Against the reference in float32 on the values that the device has."""
    call = prepare(case, target, OPS)
    assert refusal(call, target) is None, case
    given = [call.arrays[t.storage] for t in call.node.inputs]
    wide = [a if a.dtype == np.int32 else a.astype(np.float32) for a in given]
    expected = OPS[case.op].reference(*wide)
    return nmse(expected, Subject(target).run(call)[0])


if __name__ == "__main__":
    device = targets("cann:0", {"cann": {"dtype": sys.argv[1]}}, None, False)[0]
    cases = [convolution(*c) for c in CONVOLUTIONS] + [scan(*s) for s in SCANS]
    print(json.dumps({str(case): error(case, device) for case in cases}))
    plugins.get().close()
