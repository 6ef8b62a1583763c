"""What a probe is: calls with tiny tensors, and what is expected of them."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from umbel_cann.views import ND


@attrs.frozen(eq=False)
class Data:
    """A tensor of a probe. Its strides are those of the arrays, which may be turned."""

    before: np.ndarray | None = None  # none: junk
    after: np.ndarray | None = None  # none: it is read alone
    format: int = ND
    int4: bool = False


Step = tuple[Any, ...]  # an operator and its arguments: Data, arrays, lists of them, numbers


@attrs.frozen(eq=False)
class Probe:
    """Calls one after the other, whose results must all be right."""

    operator: str
    dtype: str
    steps: tuple[Step, ...]
    variant: str = ""
    within: float = 0.0  # of the largest value; 0: as the dtype has it
    captured: bool = False  # recorded, and run as a whole

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.operator, self.dtype, self.variant)))


@attrs.frozen(eq=False)
class Views:
    """Several arrays as one argument."""

    arrays: list[np.ndarray]
