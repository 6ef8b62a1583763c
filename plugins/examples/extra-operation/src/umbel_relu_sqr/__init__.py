"""One new operation: relu_sqr(x) = relu(x)^2, the activation of Primer (arXiv 2109.08668).

It works on every device at once: by its reference on the host, by its decomposition on devices
that have relu and sqr. The toy accelerator gets a kernel of its own.
"""

from collections.abc import Sequence

import numpy as np
from umbel.gguf.types import DType
from umbel.graph import Builder, Operation, Spec, Tensor
from umbel.hookspecs import Device, Kernel, hookimpl

UMBEL_API = 1


def infer(x: Tensor) -> Spec:
    """The result is like x."""
    return Spec(x.shape, x.dtype)


def reference(x: np.ndarray) -> np.ndarray:
    """The definition of truth: float32 in and out."""
    positive: np.ndarray = np.maximum(x, 0)
    return positive * positive


def decompose(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    """The same from simpler operations."""
    return build.sqr(build.relu(node.inputs[0]))


RELU_SQR = Operation("relu_sqr", infer, reference, decompose, in_place=True)


@hookimpl
def ops() -> Sequence[Operation]:
    return [RELU_SQR]


def toy_kernel(node: Tensor, x: np.ndarray) -> np.ndarray:
    """For the toy, in the form that `umbel_toy.machine.Machine` documents."""
    return np.where(x > 0, x * x, 0)


@hookimpl
def kernels(device: Device) -> Sequence[Kernel]:
    if device.backend != "toy":
        return []
    return [Kernel("relu_sqr", lambda node: None, toy_kernel)]
