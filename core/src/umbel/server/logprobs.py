"""Log probabilities of tokens in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from umbel.generation import Generation
from umbel.model import Model


def _text(model: Model, token: int) -> tuple[str, list[int]]:
    data = model.tokenizer.token_bytes(token, special=True)
    return data.decode("utf-8", "replace"), list(data)


def _one(model: Model, token: int, value: float) -> dict[str, Any]:
    text, data = _text(model, token)
    return {"token": text, "logprob": value, "bytes": data}


def _told(model: Model, answer: Generation, which: slice) -> Iterable[tuple[int, Any]]:
    """(token, pairs) of those that belong to the text."""
    ends = model.tokenizer.vocab.ends
    pairs = zip(answer.tokens[which], answer.logprobs[which], strict=True)
    return ((token, best) for token, best in pairs if token not in ends)


def of_chat(model: Model, answer: Generation, which: slice, most: int) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion."""
    content = []
    for token, pairs in _told(model, answer, which):
        best = [_one(model, i, p) for i, p in pairs][:most]
        content.append({**_one(model, token, dict(pairs)[token]), "top_logprobs": best})
    return {"content": content, "refusal": None}


def of_text(
    model: Model, answer: Generation, which: slice, most: int, start: int
) -> dict[str, Any]:
    """`choices[].logprobs` of a completion; `start` is where its first token begins."""
    made: dict[str, list[Any]] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for token, pairs in _told(model, answer, which):
        text = _text(model, token)[0]
        made["tokens"].append(text)
        made["token_logprobs"].append(dict(pairs)[token])
        made["top_logprobs"].append({_text(model, i)[0]: p for i, p in pairs[:most]})
        made["text_offset"].append(start)
        start += len(text)
    return made
