"""Prompts on one device, single tokens on another, and one cache for both."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.errors import DeviceError

KINDS = {
    "shared": {"is_host": True},
    "f16": {"is_host": True, "compute": "f16", "takes": lambda dtype: "f16"},
    "no scatter": {"is_host": True, "refuse": ("without", "set_rows", "kv_attention")},
    "opaque": {"is_host": True, "opaque": True, "token_buckets": (1, 4, 16)},
    "no attention": {"refuse": ("without", "set_rows", "kv_attention", "get_rows", "mul_mat")},
}


def made(kit, how):
    refuse = how.get("refuse")
    return kit.Fake(**{**how, "refuse": kit.without(*refuse[1:])} if refuse else how)


def places(plan):
    return {p.target.name for p in plan.placement.nodes}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["llama", "gpt2", "gemma3"])
def test_the_answers_are_those_of_one_device(load, kit, ids, model, kind):
    alone = kit.spoken(load(model), ids(model))
    fake = made(kit, KINDS[kind])
    shared = load(model, prefill=(fake,))
    given = kit.spoken(shared, ids(model))
    close = 2e-2 if kind == "f16" else 1e-5
    assert np.abs(given - alone).max() <= close * np.abs(alone).max()


def test_each_step_runs_where_it_is_to(load, kit, ids):
    fake = kit.Fake(is_host=True)
    runner = load("llama", prefill=(fake,))
    kit.spoken(runner, ids("llama"))
    by_tokens = {step.tokens > 1: places(plan) for step, plan in runner._plans.items()}
    assert by_tokens == {True: {"fake:0"}, False: {"host:0"}}
    assert {home.name for home in runner.states.homes.values()} == {"fake:0"}
    assert not any(runner.elsewhere(plan) for plan in runner._plans.values())


def test_memory_that_cannot_be_read_is_refused(load, kit):
    with pytest.raises(DeviceError, match="host:0 cannot read what fake:0 keeps of a prompt"):
        load("llama", prefill=(kit.Fake(),))


def test_strict_asks_the_device_of_each_step(load, kit):
    with pytest.raises(DeviceError, match="does not run on fake:0"):
        load(
            "llama", prefill=(kit.Fake(is_host=True, refuse=kit.only("mul_mat")),), strict=True
        )


def test_a_recurrent_state_is_handed_over(load, kit, ids):
    alone = kit.spoken(load("mamba2"), ids("mamba2"))
    given = kit.spoken(load("mamba2", prefill=(kit.Fake(is_host=True),)), ids("mamba2"))
    assert np.abs(given - alone).max() <= 1e-5 * np.abs(alone).max()


def test_a_full_context_turns_keys_where_they_lie(load, kit, ids):
    from umbel.state import Sequence

    runner = load("llama", prefill=(kit.Fake(is_host=True),), ctx=16)
    other = load("llama", ctx=16)
    answers = []
    for one in (runner, other):
        sequence = Sequence()
        one.forward(sequence, ids("llama")[:12])
        one.shift(sequence, 2)
        answers.append(one.forward(sequence, ids("llama")[12:14]))
    assert np.abs(answers[0] - answers[1]).max() <= 1e-5 * np.abs(answers[1]).max()
