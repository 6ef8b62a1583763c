"""A trained model writes what its author's documentation shows."""

from __future__ import annotations

import numpy as np

TEXT = " Once upon a time, there was a little girl named Lily."


def test_stories260k_tells_its_story(load):
    """Greedy decoding from the start token gives the known first sentence."""
    model = load("stories260K")
    pieces = model.definition.file.get("tokenizer.ggml.tokens", list)
    sequence, token, text = model.open(), 1, ""
    while len(text) < len(TEXT):
        token = int(np.argmax(model.step([(sequence, [token])])))
        text += pieces[token].replace("\u2581", " ")
    assert text == TEXT
