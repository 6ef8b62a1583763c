"""The demo model on the strict profile, against the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import umbel
from umbel import plugins

pytestmark = pytest.mark.demo


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("UMBEL_ANE_SIMULATOR", "orion-m4-macos15")
    plugins.get().close()
    yield
    plugins.get().close()


def test_the_demo_model_answers_as_on_the_host(strict) -> None:
    """64 greedy tokens, or as many as until the two best are nearer than float16 rounds."""
    with (
        umbel.load("demo", device="ane:0", ctx=256) as ane,
        umbel.load("demo", device="host", ctx=256) as host,
        ane.open() as one,
        host.open() as other,
    ):
        due, agreed = host.tokenize("The capital of France is"), 0
        for _ in range(64):
            got, wanted = one.feed(due), other.feed(due)
            gap = float(np.abs(got - wanted).max())
            assert gap <= 2e-2 * np.abs(wanted).max()
            if got.argmax() != wanted.argmax():
                best = np.sort(wanted)[-2:]
                assert best[1] - best[0] <= 2 * gap
                break
            due, agreed = [int(wanted.argmax())], agreed + 1
        assert agreed >= 8
