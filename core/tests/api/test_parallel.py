"""Many requests at once: each gets what it would get alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from umbel.errors import UmbelError

TEXTS = ["the lord", "a king", "my name is", "what", "good night", "of", "fear no more", "so"]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mamba", "mamba2", "lfm2", "gemma3"])
def test_texts_equal_those_of_serial_runs(load, name):
    """V05, V06: sixteen at once over eight prompts, of different lengths."""
    model = load(name, parallel=5, ctx=64)
    asked = [(text, 3 + 2 * i % 17) for i, text in enumerate(TEXTS * 2)]

    def read(one):
        generation = model.generate(one[0], max_tokens=one[1], temperature=0)
        return generation.read(), generation.tokens, generation.finish_reason

    serial = [read(one) for one in asked]
    with ThreadPoolExecutor(16) as pool:
        assert serial == list(pool.map(read, asked))
    free = [p.free for p in (model.runner.cache.cells, model.runner.cache.slots) if p]
    model.engine.call(lambda: None)
    assert free == [p.free for p in (model.runner.cache.cells, model.runner.cache.slots) if p]


def test_one_at_a_time_by_default(load):
    """V05: with `parallel` 1 the others wait their turn; none is dropped."""
    model = load("llama")
    generations = [model.generate(t, max_tokens=6, temperature=0) for t in TEXTS]
    together = [g.read() for g in generations]
    assert [model.generate(t, max_tokens=6, temperature=0).read() for t in TEXTS] == together


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_cancelled_neighbours_change_nothing(load, name):
    """Requests that come and go beside it, in their prompts and in their answers."""
    model = load(name, parallel=4, ubatch=8)
    settings = {"max_tokens": 40, "temperature": 0, "logit_bias": {2: -99.0, 0: -99.0}}
    expected = model.generate("the lord", **settings).read()
    generation = model.generate("the lord", **settings)
    stop = threading.Event()

    def disturb(seed):
        random = np.random.default_rng(seed)
        while not stop.is_set():
            other = model.generate(random.integers(3, 500, 30).tolist(), temperature=0)
            for _ in range(random.integers(0, 4)):
                next(other, None)
            other.close()

    threads = [threading.Thread(target=disturb, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    texts = [generation.read(), *(model.generate("the lord", **settings).read() for _ in "ab")]
    stop.set()
    for thread in threads:
        thread.join()
    assert [expected] * 3 == texts


def test_sessions_and_requests_at_once(load):
    """Sessions, answers, logits and hidden work of several threads do not mix."""
    model = load("lfm2", parallel=4)
    expected = model.logits([1, 5, 9, 13])

    def work(i):
        with model.open() as session:
            session.feed([1, 5])
            with session.fork() as other:
                other.feed([7 + i])
                other.rewind(2)
            rows = session.logits([9, 13])
        return np.abs(rows - expected[2:]).max(), model.generate([5], max_tokens=3).read()

    with ThreadPoolExecutor(4) as pool:
        assert max(error for error, _ in pool.map(work, range(12))) < 1e-4


def test_a_failing_step_ends_only_who_took_part(scripted):
    """The others' text is whole, and so is the next one."""
    model, script = scripted(endless=True, parallel=3, delay=0.001)
    script.fails_at = 50
    long = model.generate([65] * 40, temperature=0)
    short = [model.generate([65], temperature=0, max_tokens=6) for _ in range(2)]
    with pytest.raises(UmbelError, match="script"):
        long.read()
    assert 11 == len(long.text)
    assert [6, 6] == [len(g.read()) for g in short]
    script.fails_at = None
    assert 12 == len(model.generate([65] * 40, temperature=0, max_tokens=12).read())


@pytest.mark.clock
def test_closing_one_stream_during_anothers_prompt(scripted):
    """V04: A reads a long prompt, B is closed after its first piece, C comes; all complete."""
    model, _ = scripted(endless=True, parallel=3, delay=0.001, ubatch=8, ctx=600)
    b = model.generate([65], temperature=0)
    a = model.generate([65] * 400, temperature=0, max_tokens=5)
    next(b)
    began = time.monotonic()
    b.close()
    assert time.monotonic() - began < 0.5
    c = model.generate([65], temperature=0, max_tokens=5)
    assert [5, 5] == [len(a.read()), len(c.read())]


def test_two_models_on_one_device(load):
    """What stops one never stops the other."""
    one, two = load("llama"), load("gpt2")
    settings = {"max_tokens": 60, "temperature": 0}
    expected = two.generate("the", **settings).read()
    other = two.generate("the", **settings)
    for _ in range(20):
        generation = one.generate([5] * 100, temperature=0)
        generation.close()
    assert expected == other.read()
    for _ in range(50):
        one.runner.stop.ask()
        one.runner.stop.asked = False
    assert expected == two.generate("the", **settings).read()
