"""How long operations take on the device; only with `--umbel-perf` is it collected at all."""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    from umbel_kit.conformance.perf import timed_cases

    metafunc.parametrize("timed", list(timed_cases()), ids=str)


def test_time(timed, target, ops, refused, request) -> None:
    """A line for the summary; or a reason why there is none."""
    from umbel_kit.conformance.perf import seconds
    from umbel_kit.device import prepare, refusal
    from umbel_kit.pytest_plugin import TIMES

    call = prepare(timed.case, target, ops)
    reason = refusal(call, target)
    if reason is not None:
        refused(timed.case, reason)
    took = seconds(call, target)
    assert took > 0
    told = request.config.stash.setdefault(TIMES, {})
    told.setdefault(target.device.title, []).append(timed.row(call, took))
