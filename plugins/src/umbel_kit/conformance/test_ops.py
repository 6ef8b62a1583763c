"""Every operation on the device, against the reference."""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    from umbel_kit.conformance.conftest import all_cases

    metafunc.parametrize("case", all_cases(metafunc.config), ids=str)


def test_operation(case, target, ops, refused, right) -> None:
    """Right values where they belong, nothing written elsewhere; or a reason why not."""
    from umbel_kit.device import prepare, refusal, trial

    call = prepare(case, target, ops)
    reason = refusal(call, target)
    if reason is not None:
        refused(case, reason)
    right(trial(call, target), case)
