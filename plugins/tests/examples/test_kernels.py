"""The contract, clause by clause: kernels and operations from another distribution."""

import subprocess
import sys

import numpy as np
import pytest
from umbel.ops import OPS
from umbel.plugins import Plugins
from umbel_kit.planned import fault_of_decomposition


def test_kernel_for_somebody_elses_device(found, toy, planned):
    """The toy takes the operation whole and computes it by the kernel; so does no other."""
    import umbel_toy
    from umbel_relu_sqr import kernels, toy_kernel

    host = found.open(found.find("host"))
    assert umbel_toy._open["toy:0"].kernels["relu_sqr"].run is toy_kernel
    assert kernels(host.device) == []
    x = np.array([[-3, -1, 0, 2, 300]] * 2, np.float32)
    for targets, last in (([toy, host], np.inf), ([host], 90000)):  # beyond float16
        plan = planned(targets, "relu_sqr")
        assert [p.node.op.name for p in plan.placement.nodes] == ["relu_sqr"]
        (got,) = plan.run({"x0": x})
        assert got[1].tolist() == [0, 0, 0, 4, last]


def test_operation_without_its_kernel():
    """Where nobody brings a kernel the decomposition is placed, and right."""
    from umbel_relu_sqr import RELU_SQR
    from umbel_relu_sqr.cases import CASES

    alone = Plugins("toy")
    toy, host = (alone.open(alone.find(name)) for name in ("toy", "host"))
    ops = OPS | {"relu_sqr": RELU_SQR}
    try:
        for case in CASES[:-1]:
            assert fault_of_decomposition(case, toy, host, ops) == ""
    finally:
        alone.close()


@pytest.mark.parametrize("device", ["host", "toy"])
def test_conformance(examples, device):
    """The suite takes the cases of the operation's own, whole and in pieces."""
    command = [sys.executable, "-m", "pytest", "--pyargs", "umbel_kit.conformance", "-vv"]
    command += ["-k", "relu_sqr", "-p", "no:cacheprovider", "--umbel-device", device]
    command += ["--umbel-cases", "umbel_relu_sqr.cases"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=examples)
    assert ran.returncode == 0, ran.stdout
    assert "skipped" not in ran.stdout
    assert ran.stdout.count("test_operation[relu_sqr") > 3
    assert ran.stdout.count("test_composite[relu_sqr") > 3
