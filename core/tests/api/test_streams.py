"""Pieces of text as they come: characters, stop strings, and readers who leave."""

from __future__ import annotations

import contextlib
import gc
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
import umbel
from umbel.errors import OptionError, SamplingError, UmbelError

FAMILY = "👨‍👩‍👧‍👦é歪"
BR, OWN, FOX, END, USER, COLON = range(258, 264)


def test_characters_are_whole_and_all_there(scripted):
    """T03: one byte a token; no piece ends within a character."""
    model, _ = scripted(FAMILY.encode())
    pieces = list(model.generate([65], temperature=0))
    assert FAMILY == "".join(pieces) == model.generate([65], temperature=0).read()
    assert list(FAMILY) == pieces


def test_an_answer_that_ends_within_a_character(scripted):
    """T04: one replacement character at the end, streamed or not."""
    model, _ = scripted("歪".encode())
    generation = model.generate([65], temperature=0, max_tokens=2)
    assert "\ufffd" == "".join(generation)
    assert ("\ufffd", "length") == (generation.text, generation.finish_reason)
    assert "\ufffd" == model.generate([65], temperature=0, max_tokens=2).read()


STOPS = [
    (["own fox"], "br", "own fox", 3),
    ("own fox", "br", "own fox", 3),
    (["fox", "own fox"], "br", "own fox", 3),
    (["own fox end", "own"], "br", "own", 2),
    (["b"], "", "b", 1),
    (["nothing"], "brown fox end", None, 5),
    (["fox endless"], "brown fox end", None, 5),
    ([], "brown fox end", None, 5),
    (None, "brown fox end", None, 5),
]


@pytest.mark.parametrize(("stop", "text", "found", "tokens"), STOPS)
def test_stop_strings_over_several_tokens(scripted, stop, text, found, tokens):
    """V01: nothing of a stop string is shown, and no token after it is computed."""
    model, script = scripted([BR, OWN, FOX, END])
    for read in (lambda g: "".join(g), lambda g: g.read()):
        script.computed = 0
        generation = model.generate([65], temperature=0, stop=stop)
        assert text == read(generation) == generation.text
        assert (found, "stop") == (generation.stop_string, generation.finish_reason)
        assert tokens == len(generation.tokens) == script.computed


def test_the_beginning_of_a_stop_string_is_held_back(scripted):
    """V01: and shown when it turns out to be none; also at the end of the answer."""
    model, _ = scripted([USER, COLON, BR, USER])
    pieces = list(model.generate([65], temperature=0, stop=["\nUser:x"]))
    assert ["\nUser:br", "\nUser"] == pieces
    assert [] == list(model.generate([65], temperature=0, stop=["\nUser:"]))


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [7], 7, {"a": 1}])
def test_stop_strings_that_are_none(scripted, stop):
    """V01: an empty one would stop everything."""
    model, _ = scripted([BR])
    with pytest.raises(SamplingError) as caught:
        model.generate([65], stop=stop)
    assert "stop" == caught.value.where
    assert "br" == model.generate([65], temperature=0).read()


def test_a_session_stands_after_its_stop_string(scripted):
    """What was sampled past it does not depend on how fast somebody read."""
    model, _ = scripted([BR, OWN, FOX, END], endless=True)
    with model.open() as session:
        session.generate([65], temperature=0, stop=["own"]).read()
        assert [65, BR, OWN] == session.tokens


def test_a_space_is_dropped_only_where_a_text_starts(load):
    """The prompt's text and the answer's, joined, are the text of all the tokens."""
    model = load("stories260K", ctx=512)
    for prompt in ("", "Once", "Once upon a"):
        ids = model.tokenize(prompt)
        generation = model.generate(prompt, max_tokens=6, temperature=0)
        whole = model.detokenize(ids) + generation.read()
        assert model.detokenize([*ids, *generation.tokens]) == whole


# readers who leave


def settled(script):
    """The number of computed tokens, once it does not change any more."""
    before = -1
    while before != script.computed:
        before = script.computed
        time.sleep(0.1)
    return before


def leave_by_close(model):
    generation = model.generate([65], temperature=0)
    next(generation)
    generation.close()


def leave_by_with(model):
    with contextlib.suppress(ZeroDivisionError), model.generate([65]) as generation:
        next(generation)
        raise ZeroDivisionError


def leave_by_break(model):
    for _ in model.generate([65], temperature=0):
        break


def leave_unread(model):
    model.generate([65], temperature=0)


@pytest.mark.parametrize("leave", [leave_by_close, leave_by_with, leave_by_break, leave_unread])
def test_who_leaves_stops_the_computation(scripted, leave):
    """V03: within a second; and the next request is served at once."""
    model, script = scripted(endless=True, delay=0.005, ctx=4000)
    leave(model)
    gc.collect()
    assert settled(script) < 60
    assert 3 == len(model.generate([65], temperature=0, max_tokens=3).read())


@pytest.mark.clock
def test_who_leaves_in_the_prompt(scripted):
    """V03: the rest of a long prompt is not computed."""
    model, script = scripted(endless=True, delay=0.002, ctx=4000, ubatch=16)
    generation = model.generate([65] * 3000, temperature=0)
    time.sleep(0.1)
    began = time.monotonic()
    generation.close()
    assert time.monotonic() - began < 1
    assert settled(script) < 600
    assert ("cancelled", "", []) == (
        generation.finish_reason,
        generation.text,
        generation.tokens,
    )


def test_a_queue_of_the_dead_is_not_served(scripted):
    """V03: requests that were left before their turn cost nothing."""
    model, script = scripted(endless=True, delay=0.01, ctx=4000)
    first = model.generate([65], temperature=0, max_tokens=20)
    others = [model.generate([65] * 50, temperature=0) for _ in range(5)]
    for other in others:
        other.close()
    assert 20 == len(first.read())
    assert 20 == settled(script)


def test_a_closed_generation_is_what_was_read(scripted):
    """Text, tokens and session agree, whatever was computed ahead."""
    model, script = scripted(b"abcdefgh", endless=True)
    with model.open() as session:
        generation = session.generate([65], temperature=0, max_tokens=50)
        assert "ab" == next(generation) + next(generation)
        settled(script)
        generation.close()
        assert ("ab", [97, 98], "cancelled") == (
            generation.text,
            generation.tokens,
            generation.finish_reason,
        )
        assert [65, 97, 98] == session.tokens
        assert "cdef" == session.generate(temperature=0, max_tokens=4).read()


def test_a_thread_closes_what_another_reads(load):
    """Both come to their end."""
    model = load("llama")
    with model.open() as session:
        generation = session.generate([1, 100, 200], temperature=0, logit_bias={2: -99})
        next(generation)
        reader = threading.Thread(target=generation.read, daemon=True)
        reader.start()
        closer = threading.Thread(target=generation.close, daemon=True)
        closer.start()
        for thread in (closer, reader):
            thread.join(60)
            assert not thread.is_alive()
        assert generation.finish_reason is not None


def test_a_generation_closed_in_the_middle_of_a_step_is_what_was_read(load):
    """Whenever that is: nothing that was read is taken from the session."""
    model = load("llama")
    for i in range(20):
        with model.open() as session:
            generation = session.generate([1, 100, 200], temperature=0, logit_bias={2: -99})
            next(generation)
            time.sleep(0.01 + i / 2000)
            generation.close()
            assert [1, 100, 200, *generation.tokens] == session.tokens


def test_a_lost_generation_leaves_its_session_usable(scripted):
    """`break` is enough: the session goes on after the last piece that was read."""
    model, _ = scripted(b"abcdefgh", endless=True, delay=0.001)
    with model.open() as session:
        for piece in session.generate([65], temperature=0):
            if piece == "c":
                model.engine.post(lambda: time.sleep(0.05))  # stopped a little later
                break
        del piece
        gc.collect()
        assert "def" == session.generate(temperature=0, max_tokens=3).read()


def test_an_error_comes_once_to_the_reader(scripted):
    """What fails later is raised where the text is read; then the iteration is over."""
    model, _ = scripted(b"abcdef", fails_at=3)
    generation = model.generate([65], temperature=0)
    read = []
    with pytest.raises(UmbelError, match="script"):
        read.extend(iter(lambda: next(generation), None))
    assert "abc" == generation.text
    assert ("error", [97, 98, 99]) == (generation.finish_reason, generation.tokens)
    assert [] == list(generation)
    generation.close()


def ctrl_c_after(seconds):
    thread_id = threading.main_thread().ident
    timer = threading.Timer(seconds, lambda: signal.pthread_kill(thread_id, signal.SIGINT))
    timer.start()


def test_ctrl_c_stops_the_reader_and_the_computation(scripted):
    """It is heard while waiting, and nothing computes on behind it."""
    model, script = scripted(endless=True, delay=0.02, ctx=4000)
    generation = model.generate([65], temperature=0)
    ctrl_c_after(0.2)
    with pytest.raises(KeyboardInterrupt):
        generation.read()
    assert "cancelled" == generation.finish_reason
    assert len(generation.text) == len(generation.tokens)
    assert settled(script) < 30
    assert 1 == len(model.generate([65], temperature=0, max_tokens=1).read())


def test_ctrl_c_leaves_a_session_as_it_was(scripted):
    """A call that waits is stopped between two pieces, and all of it undone."""
    model, script = scripted(endless=True, delay=0.002, ctx=4000, ubatch=16)
    with model.open() as session:
        session.feed([65, 66])
        ctrl_c_after(0.2)
        with pytest.raises(KeyboardInterrupt):
            session.feed([65] * 3000)
        assert [65, 66] == session.tokens
        assert 2 == len(session._sequence.cells)
        assert settled(script) < 1000
        session.feed([67])
        assert [65, 66, 67] == session.tokens


def test_a_closed_model_ends_its_generations(scripted):
    """They end as cancelled; whatever comes later says that the model is closed."""
    model, _ = scripted(endless=True, delay=0.002, ctx=4000)
    generations = [model.generate([65], temperature=0) for _ in range(3)]
    session = model.open()
    session.feed([1, 2])
    next(generations[0])
    model.close()
    for generation in generations:
        generation.read()
        assert "cancelled" == generation.finish_reason
    for call in (lambda: model.generate([65]), lambda: session.feed([3]), model.open):
        with pytest.raises(UmbelError, match="closed"):
            call()
    session.close()
    generations[0].close()
    model.close()


def test_a_model_that_is_closed_gives_its_memory_back(load):
    """Also while the object itself lives on."""
    model = load("llama")
    model.generate([1, 2], max_tokens=2).read()
    runner = model.runner
    states = runner.states
    assert states.slots
    model.close()
    assert not runner.states.slots
    assert not runner._plans
    assert "" == model.detokenize([])


def test_a_session_is_busy_until_its_generation_is_read(scripted, tmp_path):
    """Every method says so, whether or not the computation has ended already."""
    model, script = scripted(b"abc")
    with model.open() as session:
        generation = session.generate([65], temperature=0)
        settled(script)
        for call in (
            lambda: session.feed([1]),
            lambda: session.logits([1]),
            lambda: session.generate([1]),
            session.fork,
            lambda: session.rewind(0),
            lambda: session.resume([1]),
            lambda: session.save(tmp_path / "s"),
        ):
            with pytest.raises(OptionError, match="generating"):
                call()
        assert "abc" == generation.read()
        session.fork().close()


def test_closing_a_session_stops_its_generation(scripted):
    """The end of its `with` block is enough."""
    model, _ = scripted(endless=True, delay=0.002, ctx=4000)
    with model.open() as session:
        generation = session.generate([65], temperature=0)
        next(generation)
    assert "cancelled" == generation.finish_reason
    assert 0 == len(session)
    assert model.runner.cache.cells.free == len(model.runner.cache.cells.references) - 1


def test_lost_sessions_give_their_place_back(scripted):
    """Without `close` the garbage collector does it."""
    model, _ = scripted(b"abc")
    for _ in range(4):
        session = model.open()
        session.feed([65] * 100)
    del session
    gc.collect()
    model.engine.call(lambda: None)
    assert model.runner.cache.cells.free == len(model.runner.cache.cells.references) - 1


def test_a_generation_outlives_its_model_and_its_session(request):
    """Who holds the answer holds what computes it, and its state."""
    path = request.path.parents[1] / "data" / "oracles" / "stories260K.gguf"
    given = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
    with umbel.load(path, device="host") as model:
        text = model.generate(**given).read()
    assert text == umbel.load(path, device="host").generate(**given).read()
    session = umbel.load(path, device="host").open()
    generation = session.generate(**given)
    next(generation)
    session = weakref.ref(session)
    gc.collect()
    assert text == generation.read()
    engine = generation._engine
    del generation
    gc.collect()
    assert session() is None
    assert engine.closed


@pytest.mark.parametrize("used", [False, True])
def test_a_process_that_forks_has_the_model_too(request, used):
    """As servers do it: load, then fork workers. The engine's thread stays with the parent."""
    path = request.path.parents[1] / "data" / "oracles" / "llama.gguf"
    code = f"""if True:
        import os, signal, sys, umbel
        model = umbel.load({str(path)!r}, device="host")
        if {used}:
            model.logits([1, 2, 3])
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        signal.alarm(20)
        assert 3 == len(model.logits([1, 2, 3]))
        model.close()
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_lost_model_is_gone(request):
    """Without `close` the garbage collector ends its thread, and nothing of it is kept."""
    path = request.path.parents[1] / "data" / "oracles" / "llama.gguf"
    model = umbel.load(path, device="host", ctx=32)
    model.generate([1, 2], max_tokens=2).read()
    thread, gone = model.engine._thread, weakref.ref(model.runner)
    del model
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()
    gc.collect()
    assert gone() is None
