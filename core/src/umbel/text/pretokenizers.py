"""The ways of cutting a text into pieces before byte-pair merging, from pretokenizers.txt."""

import re
from functools import cache, cached_property
from importlib.resources import files

import attrs
import regex


@attrs.frozen
class PreTokenizer:
    """What a name in `tokenizer.ggml.pre` stands for.

    `whole_words`: a piece that is a token is not merged from its parts. `raw`: tokens hold
    characters, with U+2581 for the space, and not the stand-ins for bytes that GPT-2 uses.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False
    raw: bool = False

    def split(self, text: str) -> list[str]:
        """The pieces, which join to the text: what no pattern matches stays a piece."""
        pieces = [text]
        for pattern in self._compiled:
            order = -1 if pattern.flags & regex.REVERSE else 1  # `split` then starts at the end
            parts = [part for piece in pieces[::order] for part in pattern.split(piece)]
            pieces = [part for part in parts[::order] if part]
        return pieces

    @cached_property
    def _compiled(self) -> list[regex.Pattern[str]]:
        # A group around the whole makes `split` return the matches with what lies between.
        return [regex.compile(f"({pattern})") for pattern in self.patterns]


@cache
def pre_tokenizers() -> dict[str, PreTokenizer]:
    """All of them by name; the file explains its own format."""
    text = files("umbel.text").joinpath("pretokenizers.txt").read_text("utf-8")
    text = re.sub("^#.*\n", "", text, flags=re.MULTILINE).replace("\n    |", "|")
    parts: dict[str, str] = {}
    known: dict[str, PreTokenizer] = {}
    for entry in re.split("\n{2,}", text.strip()):
        head, *lines = entry.split("\n    ")
        patterns = [re.sub(r"<\w+>", lambda part: parts[part[0]], line) for line in lines]
        names, _, flags = head.partition(" : ")
        if names.startswith("<"):
            parts[names] = patterns[0]
        else:
            pre = PreTokenizer(tuple(patterns), **dict.fromkeys(flags.split(), True))
            known |= dict.fromkeys(names.split(), pre)
    return known
