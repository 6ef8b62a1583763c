"""`umbel quantize IN OUT TYPE`: a model file in another type of numbers."""

import argparse

from umbel.cli import common


def add(parser: common.Parser) -> None:
    add = parser.add_argument
    add("model", metavar="IN", help=common.MODEL)
    add("out", metavar="OUT", help="the file to write")
    add("type", metavar="TYPE", help="what most weights become: Q4_K_M, Q8_0, F16, ...")
    text = "of the output matrix, or of the embedding that serves as one"
    add("--output-type", metavar="T", help=text)
    text = "0: one for each processor (0)"
    add("--threads", "-t", type=int, default=0, metavar="N", help=text)
    add("--force", action="store_true", help="replace OUT if it exists")


def run(args: argparse.Namespace) -> None:
    """Writes a model file in another type of numbers.

    TYPE is F32, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1 or Q4_0, and with the extra [quantize] also
    Q6_K, Q5_K_M, Q5_K_S, Q4_K_M, Q4_K_S, IQ4_NL, IQ4_XS, Q3_K_L, Q3_K_M, Q3_K_S, IQ3_S or
    Q2_K.
    """
    from umbel.tools.quantize import quantise

    settings = {name: getattr(args, name) for name in ("output_type", "threads", "force")}
    path = common.find(args)
    with common.live() as show:

        def tell(done: int, total: int) -> None:
            show(f"{100 * done // total} % of {common.mib(total)} written")

        report = quantise(path, args.out, args.type, progress=tell, **settings)
    sizes = f"{common.mib(report.before)} -> {common.mib(report.after)}"
    types = ", ".join(f"{name} {count}" for name, count in report.types.items())
    print(f"{args.out}: {sizes}, {report.bits:.2f} bits per weight; tensors: {types}")
