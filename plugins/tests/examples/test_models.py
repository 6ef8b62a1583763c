"""The contract, clause by clause: whole models, several of them, and their sessions."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from umbel_kit.models import KEYS
from umbel_toy.memory import Memory, Piece


@pytest.mark.parametrize("kv", ["auto", "f32"])
@pytest.mark.parametrize("arch", sorted(KEYS))
def test_whole_models(load, arch, kv, alike, ids):
    """The host's results, with keys and values on the toy and on the host."""
    answers = []
    for device in ("host", "toy"):
        model = load(arch, device, kv=kv, ctx=64)
        answers.append(model.hidden(ids) if arch == "bert" else model.logits(ids[:40]))
    alike(*answers)


def test_calls_that_hold_the_lock(found, load, monkeypatch, tmp_path, ids):
    """Of all that works on the device never two things at once, while models are loaded,
    compute, save and close on threads of their own."""
    found.load()
    toy, busy, strays, threads = found.backends["toy"], threading.RLock(), [], set()

    def alone(function):
        def called(*args):
            threads.add(threading.get_ident())
            if not busy.acquire(blocking=False):
                strays.append(function.__name__)
                return function(*args)
            try:
                time.sleep(0.0005)  # for others to come
                return function(*args)
            finally:
                busy.release()

        return called

    for hook in ("graph_compute", "sync", "forget", "close"):
        monkeypatch.setattr(toy, hook, alone(getattr(toy, hook)))
    for kind, methods in ((Memory, ("allocate", "store")), (Piece, ("read", "write"))):
        for method in methods:
            monkeypatch.setattr(kind, method, alone(getattr(kind, method)))

    def work(arch):
        model = load(arch)
        with model.open() as session:
            for i in ids[:6]:
                session.feed([i])
            session.save(tmp_path / arch)
        model.close()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, ["llama", "mamba", "gpt2"]))
    assert strays == []
    assert len(threads) > 3


def test_two_models_and_two_threads(load, ids):
    """They share one device, and disturb each other in nothing."""
    models = [load("llama"), load("mamba")]
    work = [(model, ids[i : i + 20]) for i in range(4) for model in models]
    alone = [model.logits(piece) for model, piece in work]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda pair: pair[0].logits(pair[1]), work * 3))
    for one, other in zip(alone * 3, together, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("arch", ["llama", "mamba2"])
def test_sessions(load, tmp_path, arch, alike, ids):
    """Forked, saved, restored and rewound: the state comes through the host and back."""
    model = load(arch)
    with model.open() as session:
        session.feed(ids[:7])
        with session.fork() as other:
            one, two = session.feed(ids[7:9]), other.feed(ids[20:22])
        session.save(tmp_path / "saved")
        with model.restore(tmp_path / "saved") as restored:
            np.testing.assert_array_equal(session.feed(ids[9:12]), restored.feed(ids[9:12]))
        session.rewind(7)
        np.testing.assert_array_equal(one, session.feed(ids[7:9]))
    host = load(arch, "host")
    expected = [host.logits(ids[:7] + more)[-1] for more in (ids[7:9], ids[20:22])]
    alike(np.stack(expected), np.stack([one, two]))
