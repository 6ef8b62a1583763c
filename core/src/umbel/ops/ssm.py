"""State space models: the causal convolution and the selective scan of Mamba.

ssm_scan serves both papers (arXiv 2312.00752 and 2405.21060): H heads of P channels with N
states each, B and C shared by the heads of a group. Mamba 1 has one channel per head.
"""

from functools import reduce

import numpy as np

from umbel.gguf.types import F32, DType
from umbel.graph import Builder, Operation, Shape, Spec, Tensor
from umbel.ops.elementwise import softplus
from umbel.ops.rules import Array, divides, fit, need
from umbel.ops.shape import contiguous_copy

_SCAN = (
    "state (slots, H, P, N), x (S, T, H, P), dt (S, T, H), A (H, decays), B (S, T, G, N), "
    "C (S, T, G, N), ids (S) i32"
)


def _infer_ssm_conv(sx: Tensor, kernel: Tensor) -> Spec:
    n = fit("ssm_conv", "sx (S, C, L), kernel (C, K)", sx, kernel)
    need(1 <= n["K"] <= n["L"] + 1, "ssm_conv", "L at least K - 1", sx, kernel)
    return Spec((n["S"], n["L"] - n["K"] + 1, n["C"]), F32)


def _infer_ssm_scan(*inputs: Tensor) -> Spec:
    n = fit("ssm_scan", _SCAN, *inputs)
    fits = divides(n["G"], n["H"]) and n["decays"] in (1, n["N"])
    need(fits, "ssm_scan", f"{_SCAN}, H a multiple of G, decays 1 or N", *inputs)
    return Spec((n["S"] * n["H"] * n["P"] * (n["T"] + n["N"]),), F32)


def ssm_conv(sx: Array, kernel: Array) -> Array:
    """Each channel (S, C, L) against its kernel (C, K), turned: (S, L - K + 1, C)."""
    tokens = sx.shape[2] - kernel.shape[1] + 1
    out = np.zeros((sx.shape[0], tokens, sx.shape[1]), np.float32)
    for k, weight in enumerate(kernel.T):
        out += sx[:, :, k : k + tokens].swapaxes(1, 2) * weight
    return out


def ssm_scan(
    state: Array, x: Array, dt: Array, a: Array, b: Array, c: Array, ids: Array
) -> Array:
    """The outputs (S, T, H, P) and after them the final states (S, H, P, N), flat.

    With d = softplus(dt), for each token h = exp(d A) h + d x B and y = h C, beginning from the
    rows `ids` of the state; nothing is written to it.
    """
    seqs, tokens, heads, size = x.shape
    groups, n = b.shape[2:]
    shape = (seqs, groups, heads // groups, size)
    out = np.empty(x.size + seqs * heads * size * n, np.float32)
    y = out[: x.size].reshape(seqs, tokens, groups, heads // groups * size, 1)
    h = out[x.size :].reshape(*shape, n)
    h[...] = state[ids].reshape(h.shape)
    flat = h.reshape(seqs, groups, heads // groups * size, n)
    dt = softplus(dt)
    xdt = (x * dt[..., None]).reshape(seqs, tokens, *shape[1:], 1)
    dt = dt.reshape(seqs, tokens, *shape[1:3], 1, 1)
    a = a.reshape(*shape[1:3], 1, a.shape[1])
    for t in range(tokens):
        h *= np.exp(dt[:, t] * a)
        h += xdt[:, t] * b[:, t, :, None, None]
        np.matmul(flat, c[:, t, :, :, None], out=y[:, t])
    return out


def _ssm_conv_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    (sx, kernel), tokens = node.inputs, node.shape[1]
    taps = range(kernel.shape[1])
    windows = [build.view(sx, axis=2, start=k, stop=k + tokens) for k in taps]  # (S, C, T)
    weights = [build.view(kernel, axis=1, start=k, stop=k + 1) for k in taps]  # (C, 1)
    total = reduce(build.add, map(build.mul, windows, weights))
    return contiguous_copy(build, build.permute(total, axes=(0, 2, 1)))


def _step(build: Builder, x: Tensor, t: int, shape: Shape) -> Tensor:
    """What `x` (S, T, ...) holds for token `t`, as `shape`."""
    part = build.view(x, axis=1, start=t, stop=t + 1)
    return build.reshape(contiguous_copy(build, part), shape=shape)


def _joined(build: Builder, parts: list[Tensor]) -> Tensor:
    """All parts along axis 1; by halves, so that each is copied only log2 T times."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return build.concat(_joined(build, parts[:half]), _joined(build, parts[half:]), axis=1)


def _ssm_scan_parts(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    """One step after the other: h = exp(dt A) h + dt x B, y = h C."""
    state, x, dt, a, b, c, ids = node.inputs
    (seqs, tokens, heads, size), (groups, n) = x.shape, b.shape[2:]
    flat = build.reshape(state, shape=(state.shape[0], heads * size * n))
    h = build.reshape(build.get_rows(flat, ids), shape=(seqs, heads, size, n))
    dt = build.softplus(dt)
    a = build.reshape(a, shape=(heads, a.shape[1], 1))
    outputs = []
    for t in range(tokens):
        dt_t = _step(build, dt, t, (seqs, heads, 1, 1))
        x_t = build.mul(_step(build, x, t, (seqs, heads, size, 1)), dt_t)
        # a product over one value is the outer product, and it hands B to a group's heads
        h = build.mul(h, build.exp(build.mul_mat(a, dt_t)))  # by (S, H, 1, N)
        h = build.add(h, build.mul_mat(_step(build, b, t, (seqs, groups, n, 1)), x_t))
        y = build.mul_mat(_step(build, c, t, (seqs, groups, 1, n)), h)  # (S, H, P, 1)
        outputs.append(build.reshape(y, shape=(seqs, 1, heads, size)))
    end = build.reshape(h, shape=(h.size,))
    if not outputs:
        return end
    return build.concat(build.reshape(_joined(build, outputs), shape=(x.size,)), end, axis=0)


OPS = (
    Operation("ssm_conv", _infer_ssm_conv, ssm_conv, _ssm_conv_parts),
    Operation("ssm_scan", _infer_ssm_scan, ssm_scan, _ssm_scan_parts),
)
