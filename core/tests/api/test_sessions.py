"""Sessions: what is reused, forked, rewound and saved gives what a cold start gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from umbel import gguf
from umbel.errors import ContextFullError, ModelFormatError, OptionError

MODELS = ["llama", "gpt2", "gemma3", "lfm2", "mamba", "mamba2"]
RECURRENT = {"lfm2", "mamba", "mamba2"}
IDS = [1, *range(100, 139)]

by_model = pytest.mark.parametrize("name", MODELS)


def near(model, ids, actual, bound=2e-5):
    """Whether these are the logits after the ids, from a cold start."""
    expected = model.logits(ids)[-1]
    return np.abs(expected - actual).max() <= bound * max(1, np.abs(expected).max())


def answer(session, n=6):
    generation = session.generate(temperature=0, max_tokens=n)
    generation.read()
    return generation.tokens


def cold(model, ids, n=6):
    with model.open() as session:
        session.feed(ids)
        return answer(session, n)


@by_model
def test_fork(shared, name):
    """Both go their own way from the same past, and the first is undisturbed."""
    model = shared(name)
    with model.open() as one:
        one.feed(IDS[:10])
        with one.fork() as two:
            assert one.tokens == two.tokens
            assert near(model, [*IDS[:10], 7], two.feed([7]))
            assert near(model, [*IDS[:10], 8], one.feed([8]))
            assert near(model, [*IDS[:10], 7, 9], two.feed([9]))
        assert near(model, [*IDS[:10], 8, 9], one.feed([9]))


@by_model
def test_a_fork_outlives_its_origin(shared, name):
    """What both share is kept for whoever is left."""
    model = shared(name)
    one = model.open()
    one.feed(IDS[:10])
    two = one.fork()
    one.close()
    with model.open() as other:  # would take the same places
        other.feed([5] * 30)
    assert near(model, [*IDS[:10], 7], two.feed([7]))
    two.close()


@by_model
@pytest.mark.parametrize("n", [0, 1, 7, 11, 12])
def test_rewind(shared, name, n):
    """The tokens from the n-th on are forgotten, whatever it takes to get there."""
    model = shared(name)
    with model.open() as session:
        session.feed(IDS[:6])
        session.feed(IDS[6:12])
        session.rewind(n)
        assert IDS[:n] == session.tokens
        assert near(model, [*IDS[:n], 7, 8], session.feed([7, 8]))
        assert [*IDS[:n], 7, 8] == session.tokens


@by_model
def test_a_rewound_answer_is_written_again(shared, name):
    """Rewinding into an answer and going on gives the same rest."""
    model = shared(name)
    with model.open() as session:
        session.feed(IDS[:8])
        first = answer(session, 8)
        session.rewind(8 + 3)
        assert first[3:] == answer(session, 5)
        session.rewind(8)
        assert first == answer(session, 8)


@pytest.mark.parametrize("n", [-1, 13, 2**63, True, "3", None])
def test_rewind_to_what_is_not_there(shared, n):
    """Refused; nothing is forgotten."""
    with shared("llama").open() as session:
        session.feed(IDS[:12])
        with pytest.raises(OptionError):
            session.rewind(n)
        assert IDS[:12] == session.tokens


@by_model
def test_the_same_prompt_again(shared, name):
    """K01: exactly, one token longer, one token shorter."""
    model, reused = shared(name), []
    with model.open() as session:
        for n in (12, 12, 13, 12, 11):
            reused.append(session.resume(IDS[:n]))
            assert cold(model, IDS[:n]) == answer(session)
    assert ([0, 0, 12, 0, 0] if name in RECURRENT else [0, 11, 12, 11, 10]) == reused


@by_model
def test_a_shorter_prompt(shared, name):
    """K02: what stood behind it leaves no trace."""
    model = shared(name)
    with model.open() as session:
        session.resume([*IDS[:5], 9, 9, 9, 9])
        answer(session)
        session.resume(IDS[:5])
        assert cold(model, IDS[:5]) == answer(session)


@pytest.mark.parametrize(("at", "reused"), [(0, 0), (20, 20), (39, 39)])
def test_a_change_in_the_middle(shared, at, reused):
    """K04: the common beginning is reused, and no more."""
    model = shared("llama")
    with model.open() as session:
        session.feed(IDS)
        changed = [*IDS[:at], 55, *IDS[at + 1 :]]
        assert reused == session.resume(changed)
        assert changed == session.tokens
        assert near(model, changed, session.feed())


@pytest.mark.parametrize("name", ["mamba", "mamba2", "lfm2"])
def test_recurrent_states_go_back_to_a_snapshot(shared, name):
    """K05: P1, another ending, P1 again, P1 and one more: all as from a cold start."""
    model = shared(name)
    texts = ([10, 11, 12, 13, 14, 15], [10, 11, 12, 23, 24, 25])
    reuse = []
    with model.open() as session:
        for ids in (texts[0], texts[1], texts[0], [*texts[0], 16]):
            reuse.append(session.resume(ids))
            assert cold(model, ids) == answer(session)
    assert [0, 0, 0, 6] == reuse


def test_the_end_of_what_was_fed_is_a_snapshot(shared):
    """A recurrent state goes back there, and not only to the ends of prompts."""
    model = shared("mamba")
    with model.open() as session:
        session.feed(IDS[:6])
        session.feed(IDS[6:9])
        assert 6 == session.resume([*IDS[:6], 9, 8])
        assert near(model, [*IDS[:6], 9, 8], session.feed())


def test_resume_on_nothing_or_with_nothing(shared):
    """A first prompt reuses nothing; an empty one is no prompt."""
    model = shared("llama")
    with model.open() as session:
        assert 0 == session.resume("the lord")
        assert model.tokenize("the lord") == session.tokens
        session.feed()
        assert 2 == session.resume([*model.tokenize("the lord")[:2], 5])
        with pytest.raises(OptionError):
            session.resume([])


def test_feed_and_logits(shared):
    """Rows are those of the ids that were given, also behind pending ones."""
    model = shared("llama")
    expected = model.logits(IDS[:12])
    with model.open() as session:
        assert np.allclose(expected[3], session.feed(IDS[:4]), atol=1e-5)
        assert np.allclose(expected[3], session.feed(), atol=1e-5)
        session.resume(IDS[:6])
        assert np.allclose(expected[6:12], session.logits(IDS[6:12]), atol=1e-5)
        with pytest.raises(OptionError):
            session.logits([])
        assert 12 == len(session)


def test_text_goes_on_without_bos(shared):
    """Only the first text of a session opens with BOS."""
    model = shared("llama")
    with model.open() as session:
        session.feed("the lord")
        session.feed(" of")
        assert 1 == session.tokens.count(model.tokenizer.bos_id)
        assert session.tokens[0] == model.tokenizer.bos_id


def test_what_does_not_fit_changes_nothing(shared):
    """The context, and one token more."""
    model = shared("llama")
    with model.open() as session:
        session.feed([5] * 100)
        for call in (session.feed, session.logits, session.generate):
            with pytest.raises(ContextFullError):
                call([6] * 29)
        assert [5] * 100 == session.tokens
        session.feed([6] * 28)
        with pytest.raises(ContextFullError):
            session.generate()
        with pytest.raises(ContextFullError):
            session.feed([6])
        assert 128 == len(session)


@by_model
@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
def test_save_and_restore(load, tmp_path, name, kv):
    """In another process, so to say: the answer goes on as if nothing had been."""
    one = load(name, kv=kv)
    with one.open() as session:
        session.feed(IDS[:10])
        first = answer(session, 4)
        session.save(tmp_path / "kept")
        tokens, expected = session.tokens, answer(session)
    one.close()
    with load(name, kv=kv).restore(tmp_path / "kept") as again:
        assert tokens == again.tokens
        assert [*IDS[:10], *first] == again.tokens
        assert expected == answer(again)


def test_other_weights_are_another_model(load, rewrite, tmp_path):
    """One tensor that differs anywhere makes another model of the same shape."""
    with load("llama").open() as session:
        session.feed([1, 2, 3])
        session.save(tmp_path / "kept")
    name = "blk.1.ffn_down.weight"
    with gguf.open(rewrite("llama")) as file:
        other = file.array(name) * np.float32(0.5)
    path = rewrite("llama", tensors={name: (other, 0)})
    with pytest.raises(OptionError, match="another model"):
        load(path).restore(tmp_path / "kept")


def test_what_is_not_this_models_session(load, rewrite, tmp_path):
    """Another model, another cache, no session at all: refused, with the file's name."""
    path = tmp_path / "kept"
    with load("llama").open() as session:
        session.feed(IDS[:4])
        session.save(path)
    others = (
        load("gpt2"),
        load("llama", kv="f16"),
        load(rewrite("llama", {"llama.rope.freq_base": 77.0})),
    )
    for other in others:
        with pytest.raises(OptionError) as caught:
            other.restore(path)
        assert path == caught.value.where
    path.write_bytes(b"no archive")
    with pytest.raises(ModelFormatError):
        load("llama").restore(path)
    with pytest.raises(OptionError):
        load("llama").restore(tmp_path / "nothing")


def test_a_save_that_fails_leaves_nothing(shared, tmp_path):
    """No half of a file, and the session goes on."""
    with shared("llama").open() as session:
        session.feed(IDS[:4])
        with pytest.raises(OptionError):
            session.save(tmp_path / "no" / "folder")
        assert [] == list(tmp_path.iterdir())
        session.feed([3])


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_caches_of_less_precision(shared, oracle, name, kv):
    """The logits are near those of float32, token by token too; not the same, as they round."""
    data = oracle(name)
    with shared(name, kv=kv).open() as session:
        rows = np.array([session.feed([i]) for i in data["ids"]])
    error = np.abs(rows - data["ref"]).max() / np.abs(data["ref"]).max()
    assert 1e-7 < error < {"f16": 2e-3, "q8_0": 5e-2}[kv]


def test_a_cache_whose_rows_are_no_blocks(scripted):
    """q8_0 wants rows of 32 values."""
    with pytest.raises(OptionError, match="rows of 8 values cannot be stored as q8_0"):
        scripted(kv="q8_0")


@pytest.mark.parametrize("kv", ["f64", "", None, "F32"])
def test_a_cache_of_no_known_type(load, kv):
    """Refused by name."""
    with pytest.raises(OptionError) as caught:
        load("llama", kv=kv)
    assert "kv" == caught.value.where


def test_sessions_fill_the_cache(load):
    """More sessions than there is room for: the error says what to do; nothing is broken."""
    model = load("llama", ctx=32)
    one = model.open()
    one.feed([5] * 30)
    two = model.open()
    with pytest.raises(ContextFullError, match="no free cells") as caught:
        two.feed([5] * 8)
    assert "close sessions" in caught.value.do
    one.close()
    two.feed([5] * 8)


END = """
import sys, umbel
model = umbel.load(sys.argv[1], device="host")
session = model.open()
session.feed("Once upon a time")
"""


def test_what_is_open_at_the_end_of_the_process():
    """Nobody closes it, and the process ends."""
    story = Path(__file__).parents[1] / "data/oracles/stories260K.gguf"
    done = subprocess.run([sys.executable, "-c", END, story], timeout=60)
    assert done.returncode == 0
