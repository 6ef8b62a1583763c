"""WordPiece ("bert"): cleaned words, each cut into the longest tokens from its start.

Reference: Devlin et al., "BERT" (2019), the tokenization of its release. In GGUF a token that
starts a word has U+2581 before it, and one that goes on has no "##".
"""

import unicodedata

import attrs
import regex

from umbel.text.vocab import SPACE, Vocab, to_bytes, to_spaces

LONGEST_WORD = 100  # a longer one is unknown as a whole

_DROPPED = regex.compile(r"(?V1)[\ufffd[\p{C}--[\t\n\r]]]")
_MARKS = regex.compile(r"\p{Mn}+")
_ALONE = (  # signs, and the ideographs of Chinese
    r"\p{P}$+<=>\^`|~\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df"
    r"\U0002a700-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f"
)
_WORDS = regex.compile(rf"[{_ALONE}]|[^\s{_ALONE}]+")


@attrs.frozen(eq=False)
class WordPieces:
    """Text to ids by the longest match; a word with a rest is one unknown token."""

    vocab: Vocab
    lower: bool
    strip_accents: bool
    space_prefix: bool = True
    text_of = staticmethod(to_spaces)

    def split(self, text: str) -> list[str]:
        text = _DROPPED.sub("", text)
        if self.strip_accents:
            text = _MARKS.sub("", unicodedata.normalize("NFD", text))
        if self.lower:
            text = "".join(map(str.lower, text))  # by character: no final sigma
        return list(_WORDS.findall(text))

    def encode(self, word: str) -> tuple[int, ...]:
        plain, out = self.vocab.plain, []
        rest = SPACE + word
        while rest and len(word) <= LONGEST_WORD:
            n = next((n for n in range(len(rest), 0, -1) if rest[:n] in plain), 0)
            if n == 0:
                break
            out.append(plain[rest[:n]])
            rest = rest[n:]
        return tuple(self.vocab.spell(to_bytes(word)) if rest else out)
