"""Decoding speed with and without a constraint: same model and prompt, as many tokens, one run.

The kinds take turns, so that a machine whose speed drifts treats all alike; what counts is the
ratio within a turn.

    python constrained.py [--tokens 40] [--turns 7] [--threads 1]
"""

import argparse
import statistics
from typing import Any

import umbel
from umbel.extras.locate import find_demo

PROMPT = "A person in a story, as JSON: "
TEXT = {"type": "string", "minLength": 400}
KINDS: dict[str, dict[str, Any]] = {
    "free": {},
    "JSON schema": {
        "json_schema": {
            "type": "object",
            "properties": {"name": TEXT, "story": TEXT},
            "required": ["name", "story"],
            "additionalProperties": False,
        }
    },
    "regex": {"regex": r"[\x20-\x7e]{400,}"},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with umbel.load(find_demo(), "host", threads=args.threads) as model:
        onwards = dict.fromkeys(model.tokenizer.vocab.ends, float("-inf"))  # no end before
        for turn in range(args.turns + 1):  # the first is a warm-up
            for kind, constraint in KINDS.items():
                answer = model.generate(
                    PROMPT, max_tokens=args.tokens, seed=turn, logit_bias=onwards, **constraint
                )
                answer.read()
                assert len(answer.tokens) == args.tokens, kind
                if turn:
                    rates[kind].append((args.tokens - 1) / answer.decode_seconds)
    for kind, some in rates.items():
        ratio = statistics.median(a / b for a, b in zip(some, rates["free"], strict=True))
        told = f"{statistics.median(some):6.1f} t/s (median), {ratio:.2f} of free"
        print(f"{kind:12} {told} (median of {args.turns} turns)")


if __name__ == "__main__":
    main()
