"""Every operation on the device, against the reference."""

from __future__ import annotations

from importlib import import_module

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    from umbel_kit.cases import CASES

    modules = map(import_module, metafunc.config.option.umbel_cases)
    more = [case for module in modules for case in getattr(module, "CASES", ())]
    metafunc.parametrize("case", [*CASES, *more], ids=str)


def test_operation(case, target, ops, refused) -> None:
    """Right values where they belong, nothing written elsewhere; or a reason why not."""
    from umbel_kit.device import Subject, fault, prepare, refusal

    call = prepare(case, target, ops)
    reason = refusal(call, target)
    if reason is not None:
        refused(reason)
    value, states = Subject(target).run(call)
    assert fault(call, target.info.compute_dtype, value, states) == ""
