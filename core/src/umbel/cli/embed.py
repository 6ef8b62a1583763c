"""`umbel embed MODEL TEXT ...`: texts as vectors, and how near they are to each other."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import umbel
from umbel.cli import common
from umbel.errors import DeviceError, OptionError

if TYPE_CHECKING:
    import numpy as np

POOLINGS = ("mean", "cls", "last", "none")
FIRST = 4  # values of a vector that are shown
COMPARED = 10  # texts at most that are


def add(parser: common.Parser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=common.MODEL)
    add("text", nargs="*", metavar="TEXT", help="the texts; -: the lines of stdin")
    add("--file", "-f", metavar="F", help="the lines of a file, a text each")
    text = "what becomes of the tokens' vectors; none: all are given (as the file says)"
    add("--pooling", choices=POOLINGS, help=text)
    text = "leave the vectors as they are; else each gets length 1"
    add("--no-normalize", dest="normalize", action="store_false", help=text)
    add("--truncate", action="store_true", help="cut texts that are too long")
    add("--json", action="store_true", help="write a JSON object a line for each text")
    text = "write the vectors to a file for NumPy"
    add("--out", "-o", type=common.replaceable(b"\x93NUMPY"), metavar="F.npy", help=text)
    common.add_load(parser)


def run(args: argparse.Namespace) -> None:
    """Turns texts into vectors.

    Shows how they begin, and for up to ten texts the cosines between them; --json and --out
    give all of them. Without TEXT or --file, the lines of stdin are the texts.
    """
    texts = _texts(args)
    with common.load(args) as model:
        ids = [model.tokenize(text) for text in texts]
        if args.truncate:
            ids = _cut(model, ids)
        n = sum(map(len, ids))
        told = f"{common.counted(len(ids), 'text')}, {common.counted(n, 'token')}"
        common.say_progress(f"embedding {told}")
        begin = time.perf_counter()
        vectors = _vectors(model, ids, args)
        seconds = time.perf_counter() - begin
        device = model.runner.targets[0].device.title
    _write(args, texts, ids, vectors)
    common.say(f"umbel: {device}: {told}, {seconds:.2f} s ({n / seconds:.1f} t/s)")


def _texts(args: argparse.Namespace) -> list[str]:
    if args.text and args.file:
        msg = "the texts are there twice"
        raise OptionError(msg, where="--file", do="give TEXT or --file, not both")
    if args.text and args.text != ["-"]:
        return list(args.text)
    if args.file and args.file != "-":
        lines = Path(args.file).read_text("utf-8", "surrogateescape").removesuffix("\n")
    else:
        lines = common.prompt("-" if args.text or args.file else None)
    if not lines:
        msg = "there are no texts"
        raise OptionError(msg, where=args.file or "stdin", expected="a text on each line")
    return lines.split("\n")


def _cut(model: umbel.Model, texts: list[list[int]]) -> list[list[int]]:
    """The texts; of those that do not fit the beginning, and the model's own end."""
    end = model.tokenizer.last
    long = [str(i) for i, ids in enumerate(texts, 1) if len(ids) > model.ctx]
    if long:
        numbers = ", ".join(long[:5]) + (" ..." if len(long) > 5 else "")
        common.log.warning("cut to %d tokens: text %s", model.ctx, numbers)
    kept = model.ctx - len(end)
    return [ids if len(ids) <= model.ctx else [*ids[:kept], *end] for ids in texts]


def _vectors(
    model: umbel.Model, ids: list[list[int]], args: argparse.Namespace
) -> list[np.ndarray]:
    """Of each text its vector (n_embd,), or without pooling those of its tokens."""
    import numpy as np

    from umbel import embedding

    if args.pooling == "none":
        for i, text in enumerate(ids, 1):
            model.runner.check_room(len(text), where=f"text {i}")
        made = [model.hidden(text) for text in ids]
        made = [embedding.normalised(v) for v in made] if args.normalize else made
    else:
        made = [*model.embed(ids, pooling=args.pooling, normalize=args.normalize)]
    bad = next((i for i, vector in enumerate(made, 1) if not np.isfinite(vector).all()), None)
    if bad:
        msg = "the model gives values that are not finite"
        raise DeviceError(msg, where=f"text {bad}", do="--check names where they begin")
    return made


def _write(
    args: argparse.Namespace, texts: list[str], ids: list[list[int]], vectors: list[np.ndarray]
) -> None:
    import numpy as np

    from umbel.state.store import write_atomically

    rows = np.vstack(vectors)  # without pooling: the tokens of a text after those of another
    if args.out:
        write_atomically(args.out, lambda file: np.save(file, rows))
    if args.json:
        for text, tokens, vector in zip(texts, ids, vectors, strict=True):
            facts = {"text": text, "tokens": len(tokens), "embedding": vector.tolist()}
            print(json.dumps(facts))
    elif not args.out:
        _show(ids, vectors)


def _show(ids: list[list[int]], vectors: list[np.ndarray]) -> None:
    """The beginning of each vector, and the cosines of few."""
    import numpy as np

    from umbel import embedding

    table: list[tuple[object, ...]] = [("text", "tokens", "vector")]
    for number, (tokens, found) in enumerate(zip(ids, vectors, strict=True), 1):
        for vector in np.atleast_2d(found):
            values = " ".join(f"{value:8.4f}" for value in vector[:FIRST])
            table.append((number, len(tokens), f"{values} ... ({len(vector)} values)"))
    common.show_table(table)
    if 1 < len(vectors) <= COMPARED and vectors[0].ndim == 1:
        units = embedding.normalised(np.array(vectors))
        head = ("cosine", *range(1, len(vectors) + 1))
        print()
        cosines = (units @ units.T).tolist()
        common.show_table([head, *([i, *row] for i, row in enumerate(cosines, 1))])
