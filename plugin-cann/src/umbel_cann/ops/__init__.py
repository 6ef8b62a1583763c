"""Which operators compute which operation."""

from __future__ import annotations

from collections.abc import Mapping

from umbel_cann.ops import elementwise, rows, ssm
from umbel_cann.ops.attention import flash_attn_ext, soft_max
from umbel_cann.ops.elementwise import Lower, binary, unary
from umbel_cann.ops.experts import mul_mat_id
from umbel_cann.ops.gates import geglu, swiglu
from umbel_cann.ops.norms import norm, rms_norm
from umbel_cann.ops.products import mul_mat
from umbel_cann.views import ONE

LOWERINGS: Mapping[str, Lower] = {
    "add": elementwise.add,
    "sub": binary("Sub", ONE),
    "mul": binary("Mul"),
    "div": binary("Div"),
    "sqr": elementwise.sqr,
    "sqrt": elementwise.sqrt,
    "exp": elementwise.exp,
    "neg": unary("Neg"),
    "tanh": unary("Tanh"),
    "relu": unary("Relu"),
    "sigmoid": unary("Sigmoid"),
    "silu": unary("Silu"),
    "softplus": elementwise.softplus,
    "gelu": unary("GeluV2", 1),
    "gelu_erf": elementwise.gelu_erf,
    "scale": elementwise.scale,
    "clamp": elementwise.clamp,
    "cast": elementwise.cast,
    "cont": rows.cont,
    "concat": rows.concat,
    "sum_rows": rows.sum_rows,
    "rms_norm": rms_norm,
    "norm": norm,
    "soft_max": soft_max,
    "flash_attn_ext": flash_attn_ext,
    "get_rows": rows.get_rows,
    "set_rows": rows.set_rows,
    "top_k": rows.top_k,
    "mul_mat": mul_mat,
    "swiglu": swiglu,
    "geglu": geglu,
    "mul_mat_id": mul_mat_id,
    "ssm_conv": ssm.ssm_conv,
    "ssm_scan": ssm.ssm_scan,
}
