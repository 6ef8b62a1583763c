"""Threads that meet, readers who leave at once, and what is closed or cannot be."""

from __future__ import annotations

import contextlib
import threading

import pytest
import umbel
from umbel import plugins
from umbel.errors import DeviceError, ModelFormatError, OptionError, UmbelError

USES = [
    lambda s: s.generate(temperature=0, max_tokens=2).read(),
    lambda s: s.feed([70]).argmax(),
    lambda s: s.rewind(len(s) - 1),
    lambda s: s.resume([65, 97, 98, 99]) in (1, 2),  # as far as it was computed
]


@pytest.mark.parametrize("use", USES)
def test_leaving_is_as_good_as_closing(scripted, use):
    """Whatever comes at once finds the session after the last piece that was read."""
    model, _ = scripted(b"abcdefgh", endless=True)
    found = []
    for i in range(40):
        with model.open() as session:
            if i == 0:
                with session.generate([65], temperature=0) as generation:
                    next(generation)
            else:
                for _ in session.generate([65], temperature=0):
                    break
            found.append((use(session), session.tokens))
    assert [found[0]] * 40 == found


def test_two_threads_generate_on_one_session(scripted, monkeypatch):
    """One answers, the other is told; both at once would mix their tokens."""
    model, _ = scripted(b"abc", endless=True)
    meet, seen = threading.Barrier(2), []
    check = umbel.session.Session._check_free

    def slow(session):
        check(session)
        if not meet.broken:
            with contextlib.suppress(threading.BrokenBarrierError):
                meet.wait(0.2)  # both have looked, and neither has begun

    def ask():
        try:
            seen.append(session.generate([65], temperature=0))
        except OptionError as error:
            seen.append(error.what)

    with model.open() as session:
        with monkeypatch.context() as patch:
            patch.setattr(umbel.session.Session, "_check_free", slow)
            threads = [threading.Thread(target=ask) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
        assert 2 == len(seen)
        assert 1 == seen.count("the session is generating")


def test_a_closed_session_says_so(scripted, tmp_path):
    """It is empty, it can be closed again, and it takes nothing more."""
    model, _ = scripted(b"abc")
    with model.open() as session:
        session.feed([65])
    session.close()
    assert [] == session.tokens
    for call in (
        lambda: session.feed([1]),
        lambda: session.generate([1]),
        lambda: session.resume([1]),
        lambda: session.save(tmp_path / "s"),
        session.fork,
    ):
        with pytest.raises(OptionError, match="the session is closed"):
            call()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_backend_that_interrupts(add_backend, load, kind):
    """The reader and the caller are told of a device's error; neither hangs."""

    def graph_compute(device, graph):
        raise kind("from a plugin")

    add_backend("rude", graph_compute=graph_compute)
    model = load("llama", device="rude")
    with pytest.raises(DeviceError, match="from a plugin"):
        model.generate([1, 2], max_tokens=2).read()
    with pytest.raises(DeviceError, match="from a plugin"):
        model.logits([1, 2])


def test_a_backend_that_cannot_cancel(add_backend, load):
    """Generations and the model close all the same."""

    def cancel(device):
        raise RuntimeError("no ears")

    add_backend("deaf", cancel=cancel)
    model = load("llama", device="deaf")
    for _ in range(5):
        generation = model.generate([1, 2], max_tokens=90, temperature=0, stop=["none"])
        generation.close()
        assert "cancelled" == generation.finish_reason
    model.generate([1, 2])
    model.close()


def test_a_backend_that_cannot_forget(add_backend, load):
    """The model is closed all the same, and the fault is kept."""

    def forget(device, uid):
        raise OSError("lost the compiler")

    add_backend("clinging", forget=forget)
    model = load("llama", device="clinging")
    model.logits([1, 2, 3])
    model.close()
    assert any("lost the compiler" in fault.reason for fault in plugins.get().faults)
    with pytest.raises(UmbelError, match="closed"):
        model.logits([1])


def test_a_file_without_layers_is_refused(rewrite, load):
    """There would be no state to make room in."""
    with pytest.raises(ModelFormatError, match=r"llama\.block_count"):
        load(rewrite("llama", {"llama.block_count": 0}))


def test_a_plugin_without_devices_is_told_of(add_backend, caplog, load):
    """`auto` takes another, and a line says why not this one; who names another is spared."""

    def fails():
        raise OSError("no such bus")

    add_backend("broken", devices=fails)
    load("llama", device="auto")
    reason = "devices(): OSError: no such bus"
    assert caplog.messages == [f"the plugin 'broken' is not used: {reason}"]
    caplog.clear()
    load("llama")
    assert caplog.messages == []
