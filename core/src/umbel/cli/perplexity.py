"""`umbel perplexity MODEL FILE`: how well a model foresees a text, like llama-perplexity."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from umbel.cli import common

if TYPE_CHECKING:
    from umbel.tools.perplexity import Estimate


def add(parser: common.Parser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=common.MODEL)
    add("file", metavar="FILE", help="a text; -: stdin")
    add("--chunks", type=int, metavar="N", help="only the first N chunks")
    text = "all tokens count, not only those of the second half of each chunk"
    add("--all", action="store_true", help=text)
    add("--json", action="store_true", help="write JSON")
    common.add_load(parser, ctx="tokens of a chunk (512)")
    parser.set_defaults(ctx=512)


def run(args: argparse.Namespace) -> None:
    """Measures the perplexity of a text.

    The text is computed in chunks of --ctx tokens. Those of the second half of each chunk
    count, so that figures compare with those of llama-perplexity.
    """
    from umbel.tools import perplexity

    text = common.piped() if args.file == "-" else Path(args.file).read_bytes()
    with common.load(args) as model:
        model.open()  # refuses an encoder
        common.say_progress("cutting the text into tokens")
        ids = model.tokenizer.encode(text, eos=False)
        size, begin = min(args.ctx, model.ctx), time.perf_counter()
        given = {"ctx": size, "chunks": args.chunks, "every": args.all}
        with common.live() as show:
            for now in perplexity.estimates(model, ids, **given):
                seconds = time.perf_counter() - begin
                show(_progress(now, seconds))
        device = model.runner.targets[0].device.title
    rate = now.chunks * size / seconds
    common.say(f"umbel: {device}: {now.chunks * size} tokens, {seconds:.1f} s ({rate:.1f} t/s)")
    if args.json:
        facts = {"perplexity": now.perplexity, "error": now.error, "tokens": now.tokens}
        facts |= {"chunks": now.chunks, "ctx": size, "all": args.all}
        common.show_json(facts | {"seconds": seconds, "device": device})
    else:
        print(f"perplexity {_told(now)}, of {now.tokens} tokens in {now.chunks} x {size}")


def _told(now: Estimate) -> str:
    return f"{now.perplexity:.4f} +- {now.error:.4f}"


def _progress(now: Estimate, seconds: float) -> str:
    """The estimate so far, and the time that is left."""
    left = round(seconds / now.chunks * (now.of - now.chunks))
    return f"{now.chunks}/{now.of}  {_told(now)}  {left // 60}:{left % 60:02} left"
