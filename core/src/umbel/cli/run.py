"""`umbel run MODEL TEXT`: completes a text, or answers it as a chat."""

import argparse

from umbel.cli import common
from umbel.errors import OptionError


def add(parser: common.Parser) -> None:
    common.add_answer(parser)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to complete or answer")
    parser.add_argument("--chat", action="store_true", help="answer, do not complete")
    parser.add_argument("--special", action="store_true", help="control tokens in TEXT count")
    text = "first tokens that stay when a full context drops old ones (it ends instead)"
    parser.add_argument("--keep", type=int, metavar="N", help=text)
    common.add_load(parser)


def run(args: argparse.Namespace) -> int:
    """Completes a text.

    With --chat, --demo, --system or --chat-template the text is a message instead, and the
    model answers it. Without TEXT, or where it is "-", stdin is read.
    """
    if args.demo and args.text is None:
        args.model, args.text = None, args.model
    common.find(args)
    settings = common.answer_settings(args) | {"keep": args.keep}
    messages = common.system_message(args)
    chat = args.chat or args.demo or args.chat_template is not None or bool(messages)
    if chat and args.special:
        msg = "control tokens in messages are always plain text"
        raise OptionError(msg, where="--special", do="leave it out, or write the whole prompt")
    text = common.prompt(args.text)
    with common.load(args) as model:
        if chat:
            messages.append({"role": "user", "content": text})
            answer = model.chat(messages, template=args.chat_template, **settings)
        else:
            answer = model.generate(text, special=args.special, **settings)
        common.stream(answer)
        common.say_figures(model, args, answer)
    return 130 if answer.finish_reason == "cancelled" else 0
