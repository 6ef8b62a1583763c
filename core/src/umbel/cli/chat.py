"""`umbel chat MODEL`: a conversation, whose computed beginning is kept from turn to turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import umbel
from umbel.cli import common
from umbel.errors import OptionError, UmbelError

TALK = """/reset  forgets all            /save FILE  writes the conversation as JSON
/quit   ends, as Ctrl-D does   Ctrl-C      stops an answer"""


def add(parser: common.Parser) -> None:
    common.add_answer(parser)
    common.add_load(parser)


def run(args: argparse.Namespace) -> None:
    """Talks with a model through its own chat template.

    Messages may also be piped in, one a line. Ctrl-C stops an answer; Ctrl-D or /quit ends the
    conversation.
    """
    settings = common.answer_settings(args)
    tty = all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout))
    with common.load(args) as model, model.open() as session:
        talk = Talk(args, settings, session)
        if tty:
            common.say(f"{model.file.path.name} on {model.devices[0]}; /help tells more")
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 (gives input() its history)
        while (text := _read(tty)) != "/quit":
            try:
                talk.turn(text)
            except UmbelError as error:
                if not tty:
                    raise
                common.say(f"umbel: error: {error}")


def _read(tty: bool) -> str:
    """The next message or command, perhaps empty; /quit at the end."""
    if sys.stdin is None:
        msg = "there is nobody to talk to: the input is closed"
        raise OptionError(msg, do="pipe messages in, one a line, or use `umbel run`")
    try:
        return input("> " if tty else "").strip()
    except EOFError:
        return "/quit"
    except KeyboardInterrupt:
        if not tty:
            raise
        print()
        return ""


class Talk:
    """The messages so far, and the session that has most of them computed."""

    def __init__(
        self, args: argparse.Namespace, settings: dict[str, Any], session: umbel.Session
    ) -> None:
        self.args, self.settings, self.session = args, settings, session
        self.model = session.model
        self.beginning = common.system_message(args)
        self.messages = self.beginning
        if args.chat_template is None and self.model.chat_template is None:
            self.prompt([])  # is refused, before anything is typed

    def turn(self, text: str) -> None:
        word, _, file = text.partition(" ")
        if word == "/help":
            common.say(TALK)
        elif word == "/reset":
            self.messages = self.beginning
        elif word == "/save" and file:
            self.save(common.replaceable(b"{")(str(Path(file).expanduser())))
        elif re.fullmatch("/[a-z]+", word):
            msg = f"{word} is no command, or lacks its FILE"
            raise OptionError(msg, do="/help tells what there is")
        elif text:
            self.answer(text)

    def answer(self, text: str) -> None:
        """Answers a message; without an answer it is as if it had not been asked."""
        messages = [*self.messages, {"role": "user", "content": text}]
        self.session.resume(self.prompt(messages))
        with self.session.generate(**self.settings) as answer:
            common.stream(answer)
        if answer.text:
            self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        common.say_figures(self.model, self.args, answer)

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """The conversation as tokens; its oldest turns are dropped until there is room."""
        ctx, start = self.model.ctx, len(self.beginning)
        room = min(ctx // 4, self.settings["max_tokens"] or ctx)
        while True:
            ids = self.model.chat_prompt(messages, template=self.args.chat_template)
            if len(ids) + room <= ctx or len(messages) == start + 1:
                return ids
            del messages[start : start + 2]
            text = "the context of %d tokens is full: the oldest 2 messages are dropped"
            common.log.warning(text, ctx)

    def save(self, path: Path) -> None:
        from umbel.state.store import write_atomically

        text = json.dumps({"messages": self.messages}, indent=2)
        write_atomically(path, lambda file: file.write(text.encode()))
        common.say(f"{len(self.messages)} messages are in {path}")
