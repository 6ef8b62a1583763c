"""The conformance suite on this backend, in a process of its own."""

import subprocess
import sys


def test_conformance() -> None:
    """Right values for all that is supported; `-rs` lists what is not."""
    command = [sys.executable, "-m", "pytest", "--pyargs", "umbel_kit.conformance"]
    ran = subprocess.run([*command, "--umbel-device", "newname", "-q"], check=False)
    assert ran.returncode == 0
