"""Sequences in files."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest
from umbel.errors import ContextFullError, ModelFormatError, OptionError
from umbel.state import Sequence
from umbel.state.store import load as load_sequence
from umbel.state.store import save, write_atomically


def read(path, cache, states, model, n_vocab=1 << 31):
    return load_sequence(path, cache, states, model, n_vocab)


def counts(runner):
    return [p.references.tolist() for p in (runner.cache.cells, runner.cache.slots)]


CASES = [("llama", "f32"), ("llama", "f16"), ("llama", "q8_0"), ("mamba2", "f32")]
CASES += [("lfm2", "f32"), ("lfm2", "f16")]


@pytest.mark.parametrize(("name", "kv"), CASES)
def test_same_logits(load, ids, tmp_path, name, kv):
    """A sequence goes on in another process as if it had never stopped, bit for bit."""
    given = ids(name)
    runner = load(name, kv=kv)
    sequence = Sequence()
    runner.forward(sequence, given[:9])
    sequence.shifts = 2
    save(tmp_path / "s.umbel", sequence, runner.states, "model")
    expected = runner.forward(sequence, given[9:14], every=True)
    other = load(name, kv=kv)
    other.forward(Sequence(), given[:3])  # other places are free there
    loaded = read(tmp_path / "s.umbel", other.cache, other.states, "model")
    assert (given[:9], 2) == (loaded.tokens, loaded.shifts)
    actual = other.forward(loaded, given[9:14], every=True)
    assert expected.tolist() == actual.tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["s.umbel"]


@pytest.mark.parametrize("name", ["llama", "mamba2"])
def test_an_empty_sequence(load, ids, tmp_path, name):
    """Nothing is saved and loaded as nothing."""
    runner = load(name)
    save(tmp_path / "s", Sequence(), runner.states, "model")
    before = counts(runner)
    loaded = read(tmp_path / "s", runner.cache, runner.states, "model")
    assert before == counts(runner)  # closing a session without tokens gives nothing back
    fresh = Sequence()
    expected = runner.forward(fresh, ids(name)[:4])
    assert expected.tolist() == runner.forward(loaded, ids(name)[:4]).tolist()


def test_forks_are_saved_apart(load, ids, tmp_path):
    """What a sequence shares with others is in its file too."""
    runner = load("llama")
    one = Sequence()
    runner.forward(one, ids("llama")[:6])
    two = runner.cache.fork(one)
    runner.decode([one, two], [3, 4])
    runner.decode([one, two], [5, 6])
    expected = runner.forward(runner.cache.fork(two), [7])
    save(tmp_path / "s", two, runner.states, "model")
    loaded = read(tmp_path / "s", runner.cache, runner.states, "model")
    assert expected.tolist() == runner.forward(loaded, [7]).tolist()


@pytest.fixture
def saved(load, ids, tmp_path):
    """A runner, and a good file."""
    runner = load("llama")
    sequence = Sequence()
    runner.forward(sequence, ids("llama")[:5])
    save(tmp_path / "good", sequence, runner.states, "model")
    runner.cache.close(sequence)
    return runner, tmp_path / "good"


def refused(runner, path, error, match, model="model"):
    """The file is refused, and nothing is left behind."""
    before = counts(runner)
    with pytest.raises(error, match=match) as caught:
        read(path, runner.cache, runner.states, model)
    assert before == counts(runner)
    return caught.value


def test_another_model(saved, load):
    """The fingerprint, the kind of cache and the format must be the same."""
    runner, path = saved
    error = refused(runner, path, OptionError, "another model", "other")
    assert (error.expected, error.got) == ("other", "model")
    refused(load("llama", kv="f16"), path, OptionError, "another states")


def rewritten(path, **changes):
    with np.load(path) as archive:
        arrays = dict(archive.items())
    header = json.loads(arrays["header"].tobytes())
    changes = {k: v(header, arrays) if callable(v) else v for k, v in changes.items()}
    arrays = {k: v for k, v in (arrays | changes).items() if v is not None}
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def packed(value):
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


NAME = "state.k_cache.1"
BAD = {
    "another format": (
        OptionError,
        "format",
        {"header": lambda h, a: packed(h | {"format": 2})},
    ),
    "no format": (OptionError, "format", {"header": packed({})}),
    "no header": (ModelFormatError, "not a saved", {"header": None}),
    "header is a list": (ModelFormatError, "not a saved", {"header": packed([1, 2])}),
    "header is no JSON": (ModelFormatError, "not a saved", {"header": np.zeros(9, np.uint8)}),
    "no tokens": (ModelFormatError, "not a saved", {"tokens": None}),
    "tokens are text": (ModelFormatError, "not a saved", {"tokens": np.array(["a"] * 5)}),
    "tokens are fractions": (ModelFormatError, "not a saved", {"tokens": np.ones(5)}),
    "fewer tokens": (ModelFormatError, "another shape", {"tokens": np.ones(4, np.int64)}),
    "tokens in a table": (
        ModelFormatError,
        "not a saved",
        {"tokens": np.ones((5, 1), np.int64)},
    ),
    "no shifts": (ModelFormatError, "not a saved", {"shifts": None}),
    "shifts are text": (ModelFormatError, "not a saved", {"shifts": np.array("two")}),
    "no state": (ModelFormatError, "another shape", {NAME: None}),
    "other rows": (ModelFormatError, "another shape", {NAME: np.zeros((5, 4), np.uint8)}),
    "wide values": (ModelFormatError, "another", {NAME: lambda h, a: a[NAME].astype(float)}),
    "objects": (ModelFormatError, "not a saved", {NAME: np.array([None] * 5)}),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_file(saved, how):
    """Each is one typed error, and no place is taken."""
    runner, path = saved
    error, match, changes = BAD[how]
    rewritten(path, **changes)
    assert str(path) in str(refused(runner, path, error, match).where)


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(saved, share):
    """Half a file is no file."""
    runner, path = saved
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(runner, path, ModelFormatError, "not a saved sequence")


def test_a_damaged_file(saved):
    """A changed byte of the state is noticed."""
    runner, path = saved
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    refused(runner, path, ModelFormatError, "not a saved sequence")


def test_other_files(saved, tmp_path):
    """A folder, a missing file, a single array and a text are refused."""
    runner, path = saved
    refused(runner, tmp_path, ModelFormatError, "not a saved")
    refused(runner, tmp_path / "none", OptionError, "no such file")
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    refused(runner, path, ModelFormatError, "not a saved")
    path.write_text("Once upon a time")
    refused(runner, path, ModelFormatError, "not a saved")


def test_no_room(saved):
    """A sequence that does not fit leaves the others alone."""
    runner, path = saved
    other = Sequence()
    taken = runner.cache.begin(other, runner.cache.cells.free - 3)
    refused(runner, path, ContextFullError, "no free")
    runner.cache.abort(taken)
    assert len(read(path, runner.cache, runner.states, "model")) == 5


def test_a_device_that_fails(saved, monkeypatch):
    """When the state cannot be written, the places are given back."""
    runner, path = saved

    def fails(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(runner.states), "write_rows", fails)
    refused(runner, path, KeyboardInterrupt, None)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk(saved, monkeypatch, tmp_path, code):
    """What was there before stays, and nothing half-written does."""
    runner, path = saved
    before = path.read_bytes()

    def fails(file, **arrays):
        file.write(b"half")
        raise OSError(code, "no space left")

    monkeypatch.setattr(np, "savez", fails)
    with pytest.raises(OptionError, match="cannot be written") as caught:
        save(path, Sequence(), runner.states, "model")
    assert (path, "no space left") == (caught.value.where, caught.value.got)
    assert [path] == list(tmp_path.iterdir())
    assert before == path.read_bytes()


def test_ctrl_c_while_writing(tmp_path):
    """An interrupted write leaves nothing."""

    def stops(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "s", stops)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["no/such/folder/s", "x" * 300])
def test_a_place_that_cannot_be_written(tmp_path, where):
    """A missing folder and a bad name are typed errors."""
    with pytest.raises(OptionError, match="cannot be written"):
        write_atomically(tmp_path / where, lambda file: None)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OptionError, match="cannot be written"):
        write_atomically(tmp_path / "folder", lambda file: None)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def changed(path, **more):
    with np.load(path) as archive:
        arrays = dict(archive) | more
    with open(path, "wb") as file:
        np.savez(file, **arrays)


@pytest.mark.parametrize(
    "bad",
    [
        {"tokens": np.array([1, 2, -1, 4, 5])},
        {"tokens": np.array([1, 2, 3, 4, 99])},
        {"tokens": np.array([[1, 2, 3, 4, 5]])},
        {"tokens": np.array(1)},
        {"shifts": np.array(-1)},
        {"shifts": np.array(2.5)},
        {"shifts": np.array([1, 2])},
        {"shifts": np.array([1])},
        {"shifts": np.array(1 << 40)},
    ],
    ids=str,
)
def test_bad_numbers(saved, bad):
    """Tokens that are no ids of the model and impossible counts are refused."""
    runner, path = saved
    changed(path, **bad)
    before = counts(runner)
    with pytest.raises(ModelFormatError, match="not a saved sequence"):
        read(path, runner.cache, runner.states, "model", 99)
    assert before == counts(runner)


def test_no_advice_about_pickles(saved):
    """A file that is something else is not said to need a dangerous option."""
    runner, path = saved
    path.write_text("Once upon a time")
    with pytest.raises(ModelFormatError) as caught:
        read(path, runner.cache, runner.states, "model")
    assert "pickle" not in str(caught.value.got)


def test_a_link_stays_one(saved, tmp_path):
    """What a link points to is written, there or not."""
    runner, path = saved
    (tmp_path / "folder").mkdir()
    for real in (path, tmp_path / "folder" / "new"):
        link = tmp_path / "folder" / "link"
        link.symlink_to(real)
        save(link, Sequence(), runner.states, "model")
        assert link.is_symlink()
        assert read(real, runner.cache, runner.states, "model").tokens == []
        link.unlink()


def test_only_regular_files_are_replaced(tmp_path):
    """A pipe is left alone, also behind a link."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(OptionError, match="something else"):
            write_atomically(tmp_path / name, lambda file: None)
    assert (tmp_path / "pipe").is_fifo()
