"""Decoding speed of the host backend beside `transformers`: same model, threads, one run.

transformers holds the model in float32, dequantised from the same GGUF file. The two take
turns, so that a machine whose speed drifts treats both alike; what counts is the ratio.

    python beside_transformers.py [--tokens 32] [--turns 5] [--threads 2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import umbel
from umbel.extras.locate import find_demo

PROMPT = "The history of the city begins in the twelfth century, when"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()

    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    path = find_demo()
    other = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    ).eval()
    with umbel.load(path, "host", options={"host": {"threads": args.threads}}) as model:
        ids = model.tokenize(PROMPT)

        def ours() -> tuple[float, list[int]]:
            generation = model.generate(ids, max_tokens=args.tokens, temperature=0.0)
            generation.read()
            return (len(generation.tokens) - 1) / generation.decode_seconds, generation.tokens

        def theirs() -> tuple[float, list[int]]:
            with torch.inference_mode():
                out = other(torch.tensor([ids]), use_cache=True)
                tokens = [int(out.logits[0, -1].argmax())]
                began = time.perf_counter()
                for _ in range(args.tokens - 1):
                    out = other(
                        torch.tensor([tokens[-1:]]),
                        past_key_values=out.past_key_values,
                        use_cache=True,
                    )
                    tokens.append(int(out.logits[0, -1].argmax()))
            return (len(tokens) - 1) / (time.perf_counter() - began), tokens

        ours(), theirs()  # warm-up
        pairs = []
        for _ in range(args.turns):
            (a, text_a), (b, text_b) = ours(), theirs()
            same = sum(x == y for x, y in zip(text_a, text_b, strict=False))
            pairs.append((a, b))
            print(
                f"host {a:6.1f} t/s   transformers {b:6.1f} t/s   ratio {a / b:.2f}   "
                f"{same} of {len(text_b)} tokens the same"
            )
    ratios = [a / b for a, b in pairs]
    host, torch_ = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"median: host {host:.1f} t/s, transformers {torch_:.1f} t/s, "
        f"ratio {statistics.median(ratios):.2f}, {args.threads} threads"
    )


if __name__ == "__main__":
    main()
