"""A third distribution, as tests install it: its environment says which kernels it brings.

Each lowers what it is called for, and leaves a mark in the file that USED names.
"""

from __future__ import annotations

import os
from pathlib import Path

import attrs
from umbel.graph import Tensor
from umbel.hookspecs import Device, Kernel, hookimpl
from umbel_cann.kernels import (
    NCL,
    Launches,
    NpuKernel,
    Numbers,
    Unsupported,
    type_of,
)

UMBEL_API = 1
ONE, ZERO = Numbers((1,)), Numbers((0,))


def used(what: str) -> None:
    with Path(os.environ["USED"]).open("a") as file:
        file.write(f"{what}\n")


def ssm_conv(to: Launches, node: Tensor) -> None:
    number = type_of(node.dtype)
    x, weight = (to.operand(t, number) for t in node.inputs)
    (channels, width), (outer, inner) = weight.shape, weight.strides
    shape, strides = (channels, 1, width), (outer, outer, inner)
    weight = attrs.evolve(weight, shape=shape, strides=strides)
    out = to.view(node).permuted(0, 2, 1)
    x, weight, out = (attrs.evolve(view, format=NCL) for view in (x, weight, out))
    down = int(to.chip.name == "310P")
    steps = ONE, ZERO, ONE, False, ZERO, channels
    to.emit("Convolution", x, weight, None, *steps, out, down)
    used("ssm_conv")


def square(to: Launches, node: Tensor) -> None:
    x = to.dense(to.view(node.inputs[0]))
    to.emit("ThirdSquare", x, to.view(node))
    used("sqr")


def relu_sqr(to: Launches, node: Tensor) -> None:
    x = to.dense(to.view(node.inputs[0]))
    positive = to.temporary(x.shape, x.type)
    to.emit("Relu", x, positive)
    to.emit("Mul", positive, positive, to.view(node))


def crooked(to: Launches, node: Tensor) -> None:
    """The operator refuses what it is given, when it runs."""
    x = to.dense(to.view(node.inputs[0]))
    to.emit("Sigmoid", x.reshaped(x.size), to.view(node))


def broken(to: Launches, node: Tensor) -> None:
    raise KeyError(node.shape)


def choosy(to: Launches, node: Tensor) -> None:
    msg = "it is too small for this"
    raise Unsupported(msg)


def own(library: str) -> NpuKernel:
    return NpuKernel(square, {"ThirdSquare": "TT"}, library)


def all_kernels() -> dict[str, Kernel]:
    def any_node(_: Tensor) -> None:
        return None

    return {
        "ssm_conv": Kernel("ssm_conv", any_node, NpuKernel(ssm_conv)),
        "square": Kernel("sqr", any_node, own(os.environ.get("LIBRARY", ""))),
        "relu_sqr": Kernel("relu_sqr", any_node, NpuKernel(relu_sqr)),
        "crooked": Kernel("swiglu", any_node, NpuKernel(crooked)),
        "broken": Kernel("swiglu", any_node, NpuKernel(broken)),
        "choosy": Kernel("swiglu", any_node, NpuKernel(choosy)),
        "attention": Kernel("kv_attention", any_node, NpuKernel(choosy)),
        "wrong": Kernel("swiglu", any_node, broken),
    }


@hookimpl
def kernels(device: Device) -> list[Kernel]:
    if device.backend != "cann":
        return []
    return [all_kernels()[name] for name in os.environ["KERNELS"].split(",")]
