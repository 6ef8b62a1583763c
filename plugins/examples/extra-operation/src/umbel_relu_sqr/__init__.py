"""One new operation: relu_sqr(x) = relu(x)^2, the activation of Primer (arXiv 2109.08668).

Its reference runs on the host, its decomposition where there are relu and sqr; the toy
accelerator gets a kernel of its own.
"""

from collections.abc import Sequence

import numpy as np
from umbel.gguf.types import DType
from umbel.graph import Builder, Operation, Spec, Tensor
from umbel.hookspecs import Device, Kernel, hookimpl

UMBEL_API = 1


def infer(x: Tensor) -> Spec:
    return Spec(x.shape, x.dtype)


def reference(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.square(np.maximum(x, 0)))


def decompose(build: Builder, node: Tensor, dtype: DType) -> Tensor:
    return build.sqr(build.relu(node.inputs[0]))


RELU_SQR = Operation("relu_sqr", infer, reference, decompose, in_place=True)


@hookimpl
def ops() -> Sequence[Operation]:
    return [RELU_SQR]


def toy_kernel(node: Tensor, x: np.ndarray) -> np.ndarray:
    """As `umbel_toy.machine` documents its kernels."""
    return np.where(x > 0, x * x, 0)


@hookimpl
def kernels(device: Device) -> Sequence[Kernel]:
    mine = Kernel("relu_sqr", lambda node: None, toy_kernel)
    return [mine] if device.backend == "toy" else []
