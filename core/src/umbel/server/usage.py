"""What answers cost, as OpenAI's `usage` and llama-server's `timings`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from umbel.generation import Generation


def new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def head(kind: str, what: str, model: str) -> dict[str, Any]:
    """The beginning of each object of one answer."""
    return {"id": new_id(kind), "object": what, "created": int(time.time()), "model": model}


def usage(answers: Sequence[Generation]) -> dict[str, Any]:
    """Each prompt counts once, as OpenAI has it, for as many answers as there are."""
    prompt = answers[0].prompt_tokens
    completion = sum(len(a.tokens) for a in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": min(answers[0].cached, prompt)},
    }


def usages(answers: Sequence[Generation], each: int) -> dict[str, Any]:
    """Of several prompts with `each` answers."""
    parts = [usage(answers[i : i + each]) for i in range(0, len(answers), each)]
    keys = ("prompt_tokens", "completion_tokens", "total_tokens")
    made: dict[str, Any] = {key: sum(p[key] for p in parts) for key in keys}
    cached = sum(p["prompt_tokens_details"]["cached_tokens"] for p in parts)
    return {**made, "prompt_tokens_details": {"cached_tokens": cached}}


def timings(answer: Generation) -> dict[str, Any]:
    """Milliseconds, and tokens a second; the first token comes of the prompt."""
    computed = answer.prompt_tokens - answer.cached
    prompt_ms, ms = answer.prefill_seconds * 1e3, answer.decode_seconds * 1e3
    n = len(answer.tokens)
    return {
        "cache_n": answer.cached,
        "prompt_n": computed,
        "prompt_ms": prompt_ms,
        "prompt_per_second": computed / prompt_ms * 1e3 if prompt_ms else None,
        "predicted_n": n,
        "predicted_ms": ms,
        "predicted_per_second": (n - 1) / ms * 1e3 if ms else None,
    }
