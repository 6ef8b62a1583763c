"""`umbel convert DIR OUT`: the folder of a Hugging Face model becomes a GGUF file."""

import argparse
from pathlib import Path

from umbel.cli import common


def add(parser: common.Parser) -> None:
    parser.add_argument("folder", metavar="DIR", help="holds config.json and model.safetensors")
    parser.add_argument("out", metavar="OUT", help="the GGUF file to write")
    text = "of matrices; auto: as they are (auto)"
    parser.add_argument(
        "--type", default="auto", choices=("F32", "F16", "BF16", "auto"), help=text
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def run(args: argparse.Namespace) -> None:
    """Converts the folder of a Hugging Face model to a GGUF file.

    It needs the extra [convert], and no torch. What the file could not express is refused.
    """
    from umbel.tools.convert import convert

    folder, out = (Path(path).expanduser() for path in (args.folder, args.out))
    with common.live() as show:

        def tell(done: int, total: int, name: str) -> None:
            show(f"{done + 1} of {total} {name}")

        convert(folder, out, kind=args.type, force=args.force, progress=tell)
    print(f"{out}: {common.mib(out.stat().st_size)}")
