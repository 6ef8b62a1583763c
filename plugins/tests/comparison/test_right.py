"""`umbel compare` where all is right: models, quantised weights, several devices."""

import re

import pytest


@pytest.mark.parametrize("device", ["host", "toy"])
@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3moe", "mamba2", "lfm2"])
def test_all_right(umbel, model, arch, device):
    """Attention, experts and recurrent states; padding, casts and rows that are written later;
    the worst nodes come first."""
    done = umbel(model(arch), "--device", device, "-p", 6)
    assert (done.code, done.err.count("error")) == (0, 0), done.out
    assert re.search(r"all of \d+ nodes \(\d tokens after 0, .*1 token after 6\)", done.out)
    shares = [float(a) / float(b) for a, b in re.findall(r"^(\S+e\S+) +(\S+) ", done.out, re.M)]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)


def test_an_encoder(umbel, model):
    """It has one step."""
    done = umbel(model("bert"), "--device", "toy", "-p", 5)
    assert done.code == 0
    assert "(5 tokens after 0)" in done.out


def test_composites_are_compared_as_they_are_claimed(umbel, model, odd, wrong):
    """Whole where the device takes them whole, else the pieces that it takes."""
    odd.spoil = wrong("kv_attention")
    done = umbel(model(), "--device", "odd", "-p", 3)
    assert "is node 7 of 3 tokens after 0:\n  attention.0 (kv_attention) on odd:0" in done.out
    odd.refused, odd.spoil = {"swiglu": "no such kernel"}, wrong("silu")
    done = umbel(model(), "--device", "odd", "-p", 3)
    assert "swiglu (silu) on odd:0\n  decomposed: odd:0: no such kernel\n" in done.out


def test_rows_that_are_cut_over_devices(umbel, model, odd, monkeypatch, wrong):
    """Each multiplies its own share of a weight."""
    monkeypatch.setattr("umbel.plan.emit.LEAST", 1)
    words = model("llama", "q8_0"), "--device", "odd:0,odd:1", "--split", "row", "-p", 3
    assert umbel(*words).code == 0
    odd.spoil = lambda node, slots: (
        "[32:64]" in node.inputs[0].name and wrong("mul_mat", 2)(node, slots)
    )
    done = umbel(*words)
    assert "blk.0.attn_q (mul_mat) on odd:1\n  rows cut over odd:0, odd:1" in done.out
    assert re.search(r"input +blk\.0\.attn_q\.weight\[32:64\] +\[32, 64\] +q8_0", done.out)


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0"])
def test_quantised(umbel, model, dtype):
    """Quantised weights and caches, which the toy has converted."""
    words = model("llama", dtype), "-p", 4, "--kv", "f16"
    assert umbel(*words, "--device", "toy").code == 0
    assert umbel(*words, "--device", "odd").code == 0
