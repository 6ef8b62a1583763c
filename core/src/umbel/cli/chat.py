"""`umbel chat MODEL`: a conversation, whose computed beginning is kept from turn to turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from umbel.cli import common
from umbel.errors import OptionError, UmbelError

if TYPE_CHECKING:
    from umbel.model import Model
    from umbel.session import Session

HELP = """Talks with a model through its own chat template. Messages may also be piped in, one a
line. Ctrl-C stops an answer; Ctrl-D or /quit ends the conversation."""
TALK = '''A message is a line, or everything between """ and """.
/reset  forgets all            /save FILE  writes the conversation as JSON
/quit   ends, as Ctrl-D does   /load FILE  goes on with one'''


def add(commands: common.Commands) -> None:
    parser = common.command(commands, "chat", run, HELP)
    parser.add_argument("model", nargs="?", metavar="MODEL", help=common.MODEL)
    common.add_answer(parser)
    common.add_load(parser)


def run(args: argparse.Namespace) -> int:
    args.settings = common.answer_settings(args)
    tty = all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout))
    with common.load(args) as model, model.open() as session:
        talk = Talk(args, model, session, tty)
        if tty:
            common.say(f"{model.file.path.name} on {model.devices[0]}; /help tells more")
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 (gives input() its history)
        while (text := talk.read()) not in (None, "/quit"):
            try:
                talk.turn(str(text))
            except UmbelError as error:
                if not tty:
                    raise
                common.say(f"umbel: error: {error}")
    return 0


class Talk:
    """The messages so far, and the session that has most of them computed."""

    def __init__(
        self, args: argparse.Namespace, model: Model, session: Session, tty: bool
    ) -> None:
        self.args, self.model, self.session, self.tty = args, model, session, tty
        self.reset()

    def read(self) -> str | None:
        """The next message or command, perhaps empty; None at the end."""
        try:
            text = input("> " if self.tty else "").strip()
            if text.startswith('"""'):
                while text == '"""' or not text.endswith('"""'):
                    text += "\n" + input(". " if self.tty else "")
            return text
        except EOFError:
            return None
        except KeyboardInterrupt:
            if not self.tty:
                raise
            print()
            return ""

    def turn(self, text: str) -> None:
        word, _, file = text.partition(" ")
        if word == "/help":
            common.say(TALK)
        elif word == "/reset":
            self.reset()
        elif word == "/save" and file:
            self.save(Path(file).expanduser())
        elif word == "/load" and file:
            self.load(Path(file).expanduser())
        elif re.fullmatch("/[a-z]+", word):
            msg = f"{word} is no command, or lacks its FILE"
            raise OptionError(msg, do="/help tells what there is")
        elif text:
            quoted = text.startswith('"""')
            self.answer(text[3:-3].strip("\n") if quoted else text)

    def answer(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        said = ""
        try:
            self.session.resume(self.prompt())
            with self.session.generate(**self.args.settings) as answer:
                common.stream(answer)
                said = answer.text
        finally:
            if said:
                self.messages.append({"role": "assistant", "content": said})
            else:  # as if it had not been asked
                self.messages.pop()
        line = common.figures(self.model, self.args, answer)
        if self.tty:
            common.say(line)

    def prompt(self) -> list[int]:
        """The conversation as tokens; without its oldest turns where they leave no room."""
        ctx = self.model.ctx
        room = min(ctx // 4, self.args.settings["max_tokens"] or ctx)
        while True:
            ids = self.model.chat_prompt(self.messages, template=self.args.chat_template)
            start = int(self.messages[0]["role"] == "system")
            later = [
                i for i, m in enumerate(self.messages) if m["role"] == "user" and i > start
            ]
            if len(ids) + room <= ctx or not later:
                return ids
            text = "the context of %d tokens is full: the oldest %d messages are dropped"
            common.log.warning(text, ctx, later[0] - start)
            del self.messages[start : later[0]]

    def reset(self) -> None:
        system = self.args.system
        self.messages: list[dict[str, str]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def save(self, path: Path) -> None:
        from umbel.state.store import write_atomically

        text = json.dumps({"messages": self.messages}, indent=2)
        write_atomically(path, lambda file: file.write(text.encode()))
        common.say(f"{len(self.messages)} messages are in {path}")

    def load(self, path: Path) -> None:
        try:
            messages = json.loads(path.read_text("utf-8"))["messages"]
            self.model.chat_prompt(messages, template=self.args.chat_template)
        except (OSError, ValueError, LookupError, TypeError) as error:
            msg = "this is no saved conversation"
            expected = '{"messages": [{"role": "user", "content": "Hi"}, ...]}'
            raise OptionError(msg, where=path, expected=expected, got=error) from error
        self.messages = messages
        common.say(f"{len(messages)} messages are back")
