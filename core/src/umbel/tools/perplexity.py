"""How well a model foresees a text: the perplexity, as llama.cpp's llama-perplexity has it.

The text is cut into chunks of `ctx` tokens, which are computed by themselves; the first token
of each becomes BOS, where the model wants one. What counts are the tokens after the first half
of a chunk, whose context is long: perplexity = exp(mean of -log p(token | those before it)).
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from umbel.errors import DeviceError, OptionError
from umbel.loading import number
from umbel.model import Model

VALUES = 1 << 25  # logits that are held at once
SHORTEST = 8  # tokens of a chunk


@attrs.frozen
class Estimate:
    """What is known after some of the chunks."""

    perplexity: float
    error: float  # the standard error, by the spread of log p over the tokens
    tokens: int  # that counted
    chunks: int  # that are done
    of: int  # that there are


def estimates(
    model: Model,
    ids: Sequence[int],
    *,
    ctx: int = 512,
    chunks: int | None = None,
    every: bool = False,
) -> Iterator[Estimate]:
    """An estimate after each chunk, the last one over all of them.

    `chunks` of them at most; with `every`, all tokens count but the first of each chunk.
    """
    size = number("ctx", number("ctx", ctx, 1, model.ctx), SHORTEST)
    of = len(ids) // size
    if of == 0:
        msg = "the text is too short for one chunk"
        expected, do = f"at least {size} tokens", "take a longer text, or a smaller ctx"
        raise OptionError(msg, expected=expected, got=f"{len(ids)} tokens", do=do)
    if chunks is not None:
        of = min(of, number("chunks", chunks, 1))
    bos = model.tokenizer.first
    first = 0 if every else size // 2
    losses = np.zeros(0)
    for i in range(of):
        chunk = [*bos, *ids[i * size + len(bos) : (i + 1) * size]]
        losses = np.append(losses, _losses(model, chunk, first))
        mean, spread = losses.mean(), losses.std(ddof=1) / len(losses) ** 0.5
        if not np.isfinite(mean):
            msg = "the model gives logits that are not finite"
            raise DeviceError(msg, where=f"chunk {i + 1}", do="--check names where they begin")
        with np.errstate(over="ignore"):
            perplexity = float(np.exp(mean))
        yield Estimate(perplexity, float(spread * perplexity), len(losses), i + 1, of)


def _losses(model: Model, chunk: list[int], first: int) -> np.ndarray:
    """-log p of each token that follows those from `first` on."""
    rows = max(1, VALUES // model.tokenizer.n_vocab)
    parts: list[np.ndarray] = []
    with model.open() as session:
        if first:
            session.feed(chunk[:first])
        for i in range(first, len(chunk) - 1, rows):
            piece = chunk[i : min(i + rows, len(chunk) - 1)]
            targets = chunk[i + 1 : i + 1 + len(piece)]
            parts.append(_negative_log_p(session.logits(piece), targets))
    return np.concatenate(parts)


def _negative_log_p(logits: np.ndarray, targets: Sequence[int]) -> np.ndarray:
    """For each row of logits (which are overwritten) and the token that came: (n,) float64."""
    logits -= logits.max(axis=1, keepdims=True)
    chosen = logits[np.arange(len(targets)), targets].astype(np.float64)
    total: np.ndarray = np.exp(logits, out=logits).sum(axis=1, dtype=np.float64)
    losses: np.ndarray = np.log(total) - chosen
    return losses
