"""Kernels that other distributions bring for an NPU: what one is, and what it is given.

The hook `kernels` of such a distribution gives, for a device of the backend "cann",

    Kernel("my_op", supported, NpuKernel(lower))

A kernel that was brought is asked before the plugin's own, also for operations that the plugin
computes itself; of several for one operation in the order of their plugins' names. The first
one computes a node whose `supported(node)` gives None and whose `lower` raises no
`Unsupported`. What others, or the plugin, compute instead, a note says once, with the reason.

`lower(to, node)` says which of the vendor's operators compute the node, and with what. It
computes nothing, and there is nothing to read yet:

* It is called to ask, when tensors have no memory and launches are dropped, and again whenever
  a plan is compiled. So what it does follows from the node and `to.chip` alone. It may refuse
  by `Unsupported`; everything else it raises is an error that names the distribution.
* The node's `shape`, `strides` (bytes) and `attrs`, and the same of `node.inputs`, are in the
  words of the core. Inputs and result hold at least one value. Activations have the device's
  dtype, weights the one that they are kept in, integers are i32.
* A `View` is memory on the device: a window with strides and an offset that count elements. Of
  inputs and result it stays where it is for as long as the plan lives. The result lies over an
  input only where the operation is `in_place`. `attrs.evolve` and the methods of a view make
  other windows on the same memory, with no copy.
* Scratch memory (`temporary`) is the node's until the next one begins. It holds junk.
* Launches run on the device's one stream, in the order of `emit`, each when the one before is
  done. The plugin keeps their executors, and runs them again in each step; and it brings the
  workspace that an operator asks for, which is that launch's alone while it runs.
* A state that grows has only those of its first rows that have memory yet.

An operator that the plugin does not know is declared by the letters of its first phase, without
the size of the workspace and the executor: `T` aclTensor*, `S` aclScalar*, `A` aclIntArray*,
`L` aclTensorList*, `b` bool, `c` int8_t, `i` int32_t, `l` int64_t, `u` uint32_t, `U` uint64_t,
`f` float, `d` double, `s` char*. Their values are a `View`, `Scalar`, `Numbers` or `Views`, a
bool, int, float, or bytes; a pointer may be None. aclnnAdd, for one, is `"Add": "TTST"`. The
plugin does not try such an operator out: that there is none in the library, or no library, is
the reason why its kernel takes no node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol

import attrs
import numpy as np
from umbel.graph import Tensor

from umbel_cann.chips import Chip
from umbel_cann.views import (
    FLOAT,
    FLOAT16,
    INT32,
    NCL,
    ND,
    Argument,
    Ints,
    Numbers,
    Scalar,
    Unsupported,
    View,
    Views,
    contiguous,
    type_of,
)

__all__ = [
    "FLOAT",
    "FLOAT16",
    "INT32",
    "NCL",
    "ND",
    "Launches",
    "NpuKernel",
    "Numbers",
    "Scalar",
    "Unsupported",
    "View",
    "Views",
    "contiguous",
    "type_of",
]

_LETTERS = re.compile("[TSALbcilufdsU]*")
_NAME = re.compile(r"(?!aclnn)[A-Za-z]\w*")


class Launches(Protocol):
    """What `lower` is given: it makes views and takes launches. Dtypes are numbers, as
    `type_of` gives them: FLOAT, FLOAT16, INT32."""

    @property
    def chip(self) -> Chip:
        """What is known of the chip: its `name`, whether it has `float32`, and
        `float32_products` ..."""

    def view(self, t: Tensor) -> View:
        """The node, or an input, where it lies."""

    def operand(self, t: Tensor, number: int) -> View:
        """An input in that dtype: itself, or cast."""

    def temporary(self, shape: Ints, number: int) -> View:
        """Scratch memory, to the end of this node."""

    def once(
        self, key: Hashable, shape: Ints, number: int, fill: Callable[[View], None]
    ) -> View:
        """Memory that several nodes of a split use, filled by launches that `fill` emits at
        the first. The key is one for all kernels: name your distribution in it."""

    def constant(self, key: Hashable, number: int, values: np.ndarray) -> View:
        """Values that are on the device from its first use on; the key as that of `once`."""

    def cast(self, view: View, number: int) -> View:
        """The same values in that dtype."""

    def dense(self, view: View) -> View:
        """The same values without gaps, which many operators ask for."""

    def emit(self, operator: str, *arguments: Argument) -> None:
        """Launches aclnnOPERATOR with these; `Unsupported` where the chip or CANN has none."""

    def why_not(self, operator: str, number: int | None = None) -> str | None:
        """Why it cannot be launched with a first tensor of that dtype; None: it can."""


def _checked(_: object, __: object, operators: Mapping[str, str]) -> None:
    for name, letters in operators.items():
        if not _NAME.fullmatch(name) or not _LETTERS.fullmatch(letters):
            msg = f"{name!r}: {letters!r} is no operator: expected 'Name', without aclnn, and "
            msg += "letters for its arguments (see umbel_cann.kernels)"
            raise ValueError(msg)


@attrs.frozen
class NpuKernel:
    """The `run` of a `Kernel` for an Ascend NPU.

    `library` is where its operators are looked for first, then in CANN: a path, such as that
    of a package of custom operators (libcust_opapi.so), or a file's name, for the folders of
    CANN and of LD_LIBRARY_PATH. It is loaded when an operator is asked for.
    """

    lower: Callable[[Launches, Tensor], None] = attrs.field(
        validator=attrs.validators.is_callable()
    )
    operators: Mapping[str, str] = attrs.field(factory=dict, validator=_checked)
    library: str | None = attrs.field(
        default=None, converter=attrs.converters.optional(os.fspath)
    )
