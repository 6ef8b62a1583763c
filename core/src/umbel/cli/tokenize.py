"""`umbel tokenize MODEL TEXT`: the tokens of a text, with the file's own vocabulary."""

import argparse

from umbel.cli import common


def add(parser: common.Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help=common.MODEL)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the text")
    parser.add_argument("--ids", action="store_true", help="only the ids: [1, 2, 3]")
    parser.add_argument("--special", action="store_true", help="control tokens in TEXT count")


def run(args: argparse.Namespace) -> None:
    """Shows the tokens of a text, one a line: id and piece.

    Without a text, or with "-", stdin is read.
    """
    from umbel import gguf
    from umbel.text import load_tokenizer

    with gguf.open(common.find(args)) as file:
        tokenizer = load_tokenizer(file.metadata, where=str(file.path))
    ids = tokenizer.encode(common.prompt(args.text), special=args.special)
    if args.ids:
        print(ids)
        return
    for token in ids:
        piece = tokenizer.token_bytes(token, special=True)
        text = piece.decode("utf-8", "replace")
        partly = chr(0xFFFD) in text  # as is a part of a character
        print(f"{token:6}  {piece if partly else text!r}")
