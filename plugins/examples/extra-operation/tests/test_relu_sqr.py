"""The values; the conformance suite asks for all else, `--umbel-cases umbel_relu_sqr.cases`."""

import numpy as np
from umbel_relu_sqr import reference, toy_kernel


def test_values() -> None:
    x = np.array([-2.0, 0.0, 3.0], np.float32)
    assert [0.0, 0.0, 9.0] == reference(x).tolist() == toy_kernel(None, x).tolist()
