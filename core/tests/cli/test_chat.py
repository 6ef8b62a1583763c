"""`umbel chat`, piped and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import time

import pytest
from umbel.session import Session

SHORT = ("-n", "8", "--temp", "0")


@pytest.fixture
def chat(umbel, story, template):
    """A piped conversation: lines in, answers out."""

    def run(*lines: str, words: tuple[str, ...] = SHORT):
        text = "".join(f"{line}\n" for line in lines)
        return umbel("chat", story, "--chat-template", template, *words, stdin=text)

    return run


@pytest.fixture
def completed(umbel, story):
    """What the model says after the prompt that the template should have made."""
    return lambda prompt: umbel("run", story, prompt, *SHORT).out


def test_model_that_cannot_talk(umbel, story):
    """It is refused before anything is typed."""
    done = umbel("chat", story, stdin="")

    assert (done.code, done.out) == (2, "")
    assert "umbel: error: the model has no chat template" in done.err


def test_answers_line_by_line(chat, completed):
    """Each line is answered, with all that was said before in the prompt."""
    done = chat("Hi", "", "Who are you?")

    first = completed("user: Hi\nassistant:")
    said = first.removesuffix("\n")
    second = completed(f"user: Hi\nassistant:{said}\nuser: Who are you?\nassistant:")
    assert (0, first + second) == (done.code, done.out)
    assert done.err.count("umbel: host:0: prompt ") == 2


def test_system_message_and_reset(chat, completed):
    """--system stays in front, also after /reset."""
    done = chat("Hi", "/reset", "Hi", words=(*SHORT, "--system", "Be brief"))

    assert 2 * completed("system: Be brief\nuser: Hi\nassistant:") == done.out


def test_computed_beginning_is_kept(chat, monkeypatch):
    """The second turn reuses what the first one computed."""
    reused = []
    resume = Session.resume
    monkeypatch.setattr(
        Session, "resume", lambda self, ids: reused.append(resume(self, ids)) or reused[-1]
    )

    chat("Hi", "Who are you?")

    assert reused[0] == 0
    assert reused[1] > 8


def test_oldest_turns_are_dropped(chat, completed):
    """When the context is full the oldest turns go, and a line says so; the system stays."""
    words = (*SHORT, "--ctx", "48", "--system", "S")

    done = chat("one one one one one", "two two two two two", "three", words=words)

    assert done.code == 0
    assert done.out.count("\n") == 3
    note = "umbel: note: the context of 48 tokens is full: the oldest 2 messages are dropped\n"
    assert note in done.err


def test_message_that_never_fits(chat):
    """A single message longer than the context is an error."""
    done = chat("word " * 80, words=(*SHORT, "--ctx", "48"))

    assert (done.code, done.out) == (2, "")
    assert "context" in done.err


def test_answer_cut_by_the_context(chat):
    """An answer that fills the context says so."""
    done = chat("Hi", words=("-n", "-1", "--temp", "0", "--ctx", "32"))

    assert "the context of 32 tokens is full: the text ends here" in done.err


def test_save_replaces_talks_only(chat, tmp_path):
    """A model or a text that is named by a slip stays."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")

    done = chat(f"/save {path}")

    assert (done.code, path.read_bytes()) == (2, b"GGUF")
    assert "this is another kind of file, and stays as it is" in done.err
    again = tmp_path / "talk.json"
    assert chat(f"/save {again}", f"/save {again}").code == 0


def test_save(chat, tmp_path):
    """A conversation is written as JSON, and nothing else is left behind."""
    path = tmp_path / "my talk.json"
    first = chat("Hi", f"/save {path}").out

    said = first.removesuffix("\n")
    assert [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": said},
    ] == json.loads(path.read_text())["messages"]
    assert sorted(os.listdir(tmp_path)) == ["my talk.json", "template.jinja"]


def test_message_without_an_answer(chat, tmp_path):
    """A message that was not answered is as if it had not been asked."""
    path = tmp_path / "talk.json"

    chat("Hi", f"/save {path}", words=("-n", "0"))

    assert json.loads(path.read_text()) == {"messages": []}


@pytest.mark.parametrize("line", ["/save /nowhere/talk.json", "/save", "/sav"])
def test_bad_commands(chat, line):
    """A file that is not there, or a command that is none, is an error."""
    done = chat(line)

    assert (done.code, done.out) == (2, "")
    assert line.split()[-1].lstrip("/") in done.err


def test_quit_ends(chat):
    """Nothing after /quit is read; /help is no message."""
    done = chat("/help", "/quit", "Hi")

    assert (done.code, done.out) == (0, "")
    assert "/save FILE" in done.err


def test_slash_in_a_message(chat, completed):
    """A path is no command."""
    assert completed("user: /etc/hosts ?\nassistant:") == chat("/etc/hosts ?").out


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, spawn, *words: str) -> None:
        self.screen, inner = pty.openpty()
        self.process = spawn(*words, stdin=inner, stdout=inner, stderr=inner)
        os.close(inner)
        self.text = ""

    def wait_for(self, what: str) -> str:
        """Reads until `what` is on the screen; gives what came up to it."""
        while what not in self.text:
            assert select.select([self.screen], [], [], 20)[0], self.text
            self.text += os.read(self.screen, 4096).decode()
        before, _, self.text = self.text.partition(what)
        return before

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())


@pytest.fixture
def terminal(spawn, story, template):
    made = Terminal(
        *(spawn, "chat", story, "--chat-template", template, "--temp", "0"),
        *("--logit-bias", "1=-inf", "--logit-bias", "2=-inf"),
    )
    yield made
    os.close(made.screen)


def test_ctrl_c_stops_an_answer(terminal):
    """Ctrl-C stops the answer, or clears the line at the prompt; then it goes on."""
    terminal.wait_for("> ")
    terminal.type("Hi\n")
    terminal.wait_for("Hi\r\n")
    terminal.wait_for(" ")  # the answer has begun
    terminal.process.send_signal(signal.SIGINT)
    assert "cancelled" in terminal.wait_for("> ")

    time.sleep(0.5)  # a signal just before a read is not heard in it
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("> ")
    terminal.type("/oops\n")
    assert "umbel: error: /oops is no command" in terminal.wait_for("> ")

    terminal.type("\x04")
    assert terminal.process.wait(20) == 0


def test_quit_on_a_terminal(terminal):
    """The model and /help are told at the beginning; /quit ends."""
    assert "stories260K.gguf on host:0; /help tells more" in terminal.wait_for("> ")

    terminal.type("/quit\n")

    assert terminal.process.wait(20) == 0


def test_ctrl_c_when_piped(spawn, story, template):
    """Ctrl-C stops an answer there too, and the next line is answered."""
    process = spawn(
        *("chat", story, "--chat-template", template, "--temp", "0"),
        *("--logit-bias", "1=-inf", "--logit-bias", "2=-inf"),
    )
    process.stdin.write(b"Hi\n")
    process.stdin.flush()
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    first = process.stdout.readline()
    process.stdin.write(b"/help\n")

    _, err = process.communicate(timeout=20)

    assert first.endswith(b"\n")
    assert process.returncode == 0
    assert b"/save FILE" in err


def test_closed_input(umbel, story, template):
    """Without an input there is a plain error."""
    done = umbel("chat", story, "--chat-template", template)

    assert (done.code, done.out) == (2, "")
    assert "umbel: error: there is nobody to talk to: the input is closed" in done.err
