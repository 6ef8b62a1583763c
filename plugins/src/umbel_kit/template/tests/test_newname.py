"""The backend is found and opens, and computes what it claims to."""

import subprocess
import sys

import pytest
from umbel import plugins
from umbel.gguf.types import F32
from umbel.graph import Builder, Role
from umbel.ops import OPS
from umbel.plan import Target


@pytest.fixture
def target() -> Target:
    """The device, open. An error here says why it cannot be used."""
    found = plugins.get()
    return found.open(found.find("newname"))


def test_claims(target: Target) -> None:
    """What has a kernel is claimed; a refusal says what is missing."""
    build = Builder(OPS)
    x = build.leaf(Role.INPUT, "x", (3, 4), F32)
    assert target.hooks.op_supported(target.device, build.add(x, x)) is None
    assert "tanh" in (target.hooks.op_supported(target.device, build.tanh(x)) or "")


def test_conformance() -> None:
    """Right values for all that is claimed, in operations and in whole models.

    In a process of its own, so that a kernel that crashes does not take this one along.
    """
    suite = [sys.executable, "-m", "pytest", "--pyargs", "umbel_kit.conformance", "-q"]
    ran = subprocess.run(
        [*suite, "--umbel-device", "newname"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
