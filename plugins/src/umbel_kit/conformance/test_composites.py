"""Composite operations, made from the operations that the device has: the same values.

The decomposition is placed as a plan places it: the device computes the pieces that it claims,
the host the others.
"""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    from umbel_kit.conformance.conftest import all_cases, all_operations

    ops, cases = all_operations(), all_cases(metafunc.config)
    composite = [c for c in cases if ops[c.op].decompose is not None and not c.edges]
    metafunc.parametrize("case", composite, ids=str)


def test_composite(case, target, host, ops, right) -> None:
    """The decomposition on the device against the reference of the composite."""
    from umbel_kit.planned import fault_of_decomposition

    right(fault_of_decomposition(case, target, host, ops), case, "in pieces")
