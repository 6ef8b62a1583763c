"""How a text is cut into pieces before byte-pair merging: one entry for each `tokenizer.ggml.pre`.

The names are those that GGUF files carry and llama.cpp knows (llama-vocab.cpp); a pattern is the
one of the tokenizer.json it was converted from, in the `regex` module's dialect. Several patterns
are applied in turn, each to the pieces that the one before left; what a pattern does not match
stays as a piece of its own, so pieces always join to the text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import attrs
import regex

Splitter = Callable[[str], Iterable[str]]


@attrs.frozen
class PreTokenizer:
    """What a name in `tokenizer.ggml.pre` stands for.

    `whole_words`: a piece that is a token is not merged from its parts. `raw`: tokens hold
    characters, with U+2581 for the space, and not the stand-ins for bytes that GPT-2 uses.
    """

    name: str
    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False
    raw: bool = False


# The parts that patterns share. Case is spelled out: (?i) would also make U+017F an s.
_SUFFIX = r"'(?:[sdmt]|ll|ve|re)"
_ANY_SUFFIX = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|" + _SPACES
_KANA = r"\u3040-\u30ff"
_CHINESE_TO_KOREAN = r"[\u0800-\u9fa5\uac00-\ud7ff]+"
_ASCII_SIGN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DIGITS_FROM_RIGHT = r"(?r)\p{N}{1,3}"  # searched backwards: 1234567 is 1, 234, 567


def _words(digits: str, start: str = _ANY_SUFFIX + "|", letter: str = r"\p{L}") -> str:
    """Words with one leading sign, groups of digits, runs of signs with the line ends after."""
    return (
        rf"{start}[^\r\n\p{{L}}\p{{N}}]?{letter}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
    )


def _cased(digits: str, suffix: str = f"(?:{_ANY_SUFFIX})?", but: str = "") -> str:
    """As `_words`, where a word is also cut before a capital letter; `but` excludes letters."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = rf"[{_UPPER}{but}]", rf"[{_LOWER}{but}]"
    signs = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
    return (
        f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"
        f"|{digits}|{signs}|{_LINES}"
    )


def _signs(after_signs: str) -> str:
    """Words and signs kept apart, an ASCII sign before ASCII letters drawn to them."""
    return (
        rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
        rf"| ?[\p{{P}}\p{{S}}]+{after_signs}|{_SPACES}"
    )


_GPT2 = rf"{_SUFFIX}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_LLAMA3 = _words(r"\p{N}{1,3}")
_QWEN2 = _words(r"\p{N}")
_QWEN35 = (
    rf"{_ANY_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_RUNS_OF_LINES = r"[^\n]+|\n+"
_HALVING_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
# The cased letters of an old Unicode: what was added since is taken out.
_OLD_CASED = (
    r"(?V1)\s?[[\p{LC}\u0295]--[\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8a\u2d00-\u2d2d"
    r"\ua790-\ua7ff\uab30-\uab6d\U00010570-\U000105bc\U00010d50-\U00010d85"
    r"\U00016e40-\U0001df96]]+"
)
_AFMOE_SCRIPTS = (
    r"[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-"
    r"\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_SCRIPTS = (
    r"[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b"
    r"\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5" + _KANA + "]+"
)
_DEEPSEEK3 = (r"\p{N}{1,3}", rf"[\u4e00-\u9fa5{_KANA}]+")

_FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("default", (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9]{3}")),
    (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert"
        " jina-v1-en jina-v2-code roberta-bpe mpt olmo jais trillion granite-docling exaone4",
        (_GPT2,),
    ),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        (r"\p{N}", _GPT2),
    ),
    ("falcon", (r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9]{3}")),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx"
        " smaug-bpe chatglm-bpe glm4 glm5",
        (_LLAMA3,),
    ),
    ("jais-2", (_LLAMA3.replace(_SPACES, rf"{_HALVING_SPACES}|\s{{1,2}}(?!\S)|\s"),)),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        (_QWEN2,),
    ),
    ("qwen35", (_QWEN35,)),
    ("ufakzeka", (_words(r"\p{N}", start=""),)),
    ("laguna", (_RUNS_OF_LINES, _QWEN2)),
    ("minicpm5", (r"\p{N}{1,3}", _words(r"\p{N}+"))),
    (
        "bailingmoe bailingmoe2 llada-moe",
        (_QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),),
    ),
    ("seed-coder", (_QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}]+"),)),
    (
        "exaone-moe",
        (
            _words(r"\p{N}", letter=r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)")
            .replace(r"+[\r\n]*", r"+[\r\n/]?")
            .replace(r"\s*[\r\n]+", r"\s*[\r\n]"),
        ),
    ),
    (
        "deepseek-llm",
        (
            r"[\r\n]",
            _OLD_CASED,
            r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+\Z",
            _CHINESE_TO_KOREAN,
            r"\p{N}+",
        ),
    ),
    (
        "deepseek-coder",
        (
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            _CHINESE_TO_KOREAN,
            r"\p{N}",
        ),
    ),
    (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        (*_DEEPSEEK3, _signs(r"[\r\n]*|\s*[\r\n]+")),
    ),
    ("spark2_5", (*_DEEPSEEK3, _signs(r"|[\r\n]"), r"\p{N}")),
    ("afmoe", (_DIGITS_FROM_RIGHT, _AFMOE_SCRIPTS, _signs(r"[\r\n]*|\s*[\r\n]+"))),
    (
        "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m",
        (_cased(r"\p{N}{1,3}"),),
    ),
    ("tiny_aya cohere2moe", (_DIGITS_FROM_RIGHT, _cased(r"\p{N}{1,3}"))),
    ("tekken", (_cased(r"\p{N}", suffix=""),)),
    ("youtu", (_YOUTU_SCRIPTS, _cased(r"\p{N}"))),
    (
        "kimi-k2",
        (
            r"(?V1)\p{Han}+|"
            + _cased(r"\p{N}{1,3}", but=r"&&[^\p{Han}]").replace(r"[\r\n/]*", r"[\r\n]*"),
        ),
    ),
    ("poro-chat bloom gpt3-finnish", (_BLOOM,)),
    ("viking", (_BLOOM, r"\p{N}")),
    ("superbpe", (r"\p{N}+", _DIGITS_FROM_RIGHT)),
    (
        "chameleon",
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            "[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
    ),
    ("gemma4 granite-embed-multi-311m sarvam-moe", (_RUNS_OF_LINES,)),
    ("whitespace", (r"\S+",)),
)
_WHOLE_WORDS = frozenset(
    "minicpm5 llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
    " youtu glm4 glm5 tekken granite-embed-multi-97m".split()
)
_ADD_BOS = frozenset(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken"
    " chameleon gemma4 granite-embed-multi-311m".split()
)
_RAW = frozenset("gemma4 granite-embed-multi-311m sarvam-moe whitespace".split())

BY_NAME = {
    name: PreTokenizer(name, patterns, name in _WHOLE_WORDS, name in _ADD_BOS, name in _RAW)
    for names, patterns in _FAMILIES
    for name in names.split()
}


@functools.cache
def splitter(patterns: tuple[str, ...]) -> Splitter:
    """The function that cuts a text by these patterns, made (and compiled) once."""
    steps = [_step(pattern) for pattern in patterns]

    def split(text: str) -> Iterable[str]:
        pieces: Iterable[str] = (text,)
        for step in steps:
            pieces = [part for piece in pieces for part in step(piece) if part]
        return pieces

    return split


def _step(pattern: str) -> Splitter:
    # One group around all of it makes `split` return the matches with what lies between.
    flags, bare = regex.fullmatch(r"(\(\?\w+\))?(.*)", pattern, regex.DOTALL).groups("")
    compiled = regex.compile(f"{flags}({bare})")
    if flags == "(?r)":
        return lambda text: reversed(compiled.split(text))
    cut: Splitter = compiled.split
    return cut
