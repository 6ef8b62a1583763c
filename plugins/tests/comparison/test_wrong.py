"""`umbel compare` where a node is wrong, and where errors pile up."""

import re

import numpy as np
import pytest
from umbel.errors import DeviceError


def test_the_wrong_operation_is_named_kept_and_run_again(umbel, model, odd, tmp_path, wrong):
    """Exactly that node, and replays that differ where the device is wrong only."""
    odd.spoil, case = wrong("swiglu"), tmp_path / "case.npz"
    done = umbel(model(), "--device", "odd", "-p", 5, "--save", case)
    assert done.code == 1
    assert " of 5 tokens after 0:\n  swiglu (swiglu) on odd:0\n  runs there\n" in done.out
    assert re.search(r"result +\[5, 96\] +f32", done.out)
    assert re.search(r"input +blk\.0\.ffn_gate +\[5, 96\] +f32 +input", done.out)
    assert "NMSE 0.0001, limit 1e-07" in done.out
    again = umbel("--replay", case, "--device", "odd")
    assert again.code == 1
    assert "NMSE 0.0001, limit 1e-07" in again.out
    assert "kept in the step of 5 tokens after 0, on odd:0 (runs there)" in again.out
    for device in ("host", "toy"):
        right = umbel("--replay", case, "--device", device)
        assert (right.code, right.out.splitlines()[0]) == (0, "the node is right:"), right.out
    odd.spoil = lambda node, slots: None
    assert umbel("--replay", case, "--device", "odd").code == 0


def test_only_a_late_node(umbel, model, odd, tmp_path, wrong):
    """What comes before it is right, although the same operation runs there."""
    odd.spoil = wrong("mul_mat", layer="blk.1.ffn_down")
    done = umbel(model("llama", "q8_0"), "--device", "odd", "--save", tmp_path / "case.npz")
    assert done.code == 0, "within what products of quantised weights may differ by"
    odd.spoil = wrong("mul_mat", 1.1, "blk.1.ffn_down")
    done = umbel(model("llama", "q8_0"), "--device", "odd", "--save", tmp_path / "case.npz")
    assert done.code == 1
    assert "blk.1.ffn_down (mul_mat)" in done.out
    assert re.search(r"input +blk\.1\.ffn_down\.weight +\[64, 96\] +q8_0 +weight", done.out)
    assert umbel("--replay", tmp_path / "case.npz", "--device", "toy").code == 0


def test_a_state_that_is_written_wrongly(umbel, model, odd, tmp_path, values):
    """The result is right, the cache is not; scratch may hold anything."""

    def spoil(node, slots):
        if node.op.name == "kv_attention":
            cache = values(node.inputs[4], slots).reshape(node.inputs[4].shape)
            cache[0] = 99
            if scratch_only:
                return
            cache[2] += 1

    odd.spoil, scratch_only = spoil, True
    assert umbel(model(), "--device", "odd", "-p", 3).code == 0
    scratch_only, case = False, tmp_path / "case.npz"
    done = umbel(model(), "--device", "odd", "-p", 3, "--save", case)
    assert done.code == 1
    assert "attention.0 (kv_attention)" in done.out
    assert "v_cache.0: NMSE" in done.out
    assert umbel("--replay", case, "--device", "odd").code == 1
    assert umbel("--replay", case, "--device", "host").code == 0
    refused = umbel("--replay", case, "--device", "toy")
    assert refused.code == 2
    assert "toy:0 does not run this node" in refused.err
    assert "got: it has no kernel for kv_attention" in refused.err


def test_other_faults_of_a_node(umbel, model, odd, tmp_path, wrong):
    """An error of the device, values that are not finite, somebody else's bytes."""

    def fails(node, slots):
        if node.op.name == "rope":
            msg = "the queue is stuck"
            raise DeviceError(msg)

    def overwrites(node, slots):
        if node.op.name == "rope":
            slots[node].buffer.map("rw")[slots[node].offset + node.nbytes] = 1

    told = {"the queue is stuck": fails, "nan at [0, 0, 0]": wrong("rope", np.nan)}
    told["were overwritten, which are nobody's"] = overwrites
    for text, odd.spoil in told.items():
        done = umbel(model(), "--device", "odd", "-p", 2, "--save", tmp_path / "case.npz")
        assert done.code == 1
        assert "rope (rope) on odd:0" in done.out
        assert text in done.out
        assert umbel("--replay", tmp_path / "case.npz", "--device", "host").code == 0


def test_a_limit_of_ones_own(umbel, model, odd, wrong):
    """It stands in the place of those of the operations."""
    odd.spoil = wrong("swiglu")
    assert umbel(model(), "--device", "odd", "-p", 5, "--limit", 1e-3).code == 0
    odd.spoil = wrong("swiglu", 1 + 1e-5)
    assert umbel(model(), "--device", "odd", "-p", 5).code == 0
    done = umbel(model(), "--device", "odd", "-p", 5, "--limit", 1e-11)
    assert done.code == 1
    assert "swiglu (swiglu)" in done.out
    assert "NMSE 1e-10, limit 1e-11" in done.out


def test_the_tokens_are_those_of_the_seed(umbel, model, odd, values):
    """The same seed, the same figures; another one, others."""

    def spoil(node, slots):
        if node.op.name == "swiglu":
            values(node, slots)[:] += 1

    odd.spoil = spoil
    said = [umbel(model(), "--device", "odd", "--seed", s).out for s in (0, 0, 1)]
    assert said[0] == said[1] != said[2]


# errors that pile up


def test_chained(umbel, model, odd, wrong):
    """Small errors stay in bounds one by one; together they are seen to grow."""
    assert umbel(model(), "--device", "host", "--chained", "-p", 5).code == 0
    odd.spoil = wrong("add", 1.02)
    done = umbel(model(), "--device", "odd", "--chained", "-p", 5)
    assert done.code == 1
    errors = [float(e) for e in re.findall(r"^(\S+e[-+]\d\d) ", done.out, re.M)]
    assert errors == sorted(errors)
    assert errors[-1] > 2e-3 > 4e-4 > errors[0]
    assert "case" not in done.out.lower()


@pytest.mark.parametrize("arch", ["llama", "mamba2", "qwen3moe"])
def test_chained_on_a_narrow_device(umbel, model, arch):
    """Rounding in every node: more than in any of them alone, less than what is wrong."""
    done = umbel(model(arch), "--device", "toy", "--chained", "-p", 5)
    assert done.code == 0, done.out
    errors = [float(e) for e in re.findall(r"^(\S+e[-+]\d\d) ", done.out, re.M)]
    assert 1e-3 > errors[-1] > 4 * errors[0] > 1e-8
