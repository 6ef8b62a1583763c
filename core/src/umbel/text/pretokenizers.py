"""How a text is cut into pieces before byte-pair merging, by name (`tokenizer.ggml.pre`).

The names are those that GGUF files carry and llama.cpp knows (llama-vocab.cpp); a pattern is
that of the tokenizer.json which was converted, in the `regex` module's dialect. Where there are
several, each cuts the pieces that the one before left. What a pattern does not match stays as a
piece of its own, so pieces always join to the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import attrs
import regex

Splitter = Callable[[str], Iterable[str]]
BY_NAME: dict[str, PreTokenizer] = {}


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


def _know(names: str, *patterns: str, **flags: bool) -> None:
    for name in names.split():
        BY_NAME[name] = PreTokenizer(name, patterns, **flags)


# The parts that patterns share. Case is spelt out: (?i) would also make U+017F an s.
_SUFFIX = r"'(?:[sdmt]|ll|ve|re)"
_ANY_SUFFIX = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_SPACES = r"\s+(?!\S)|\s+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LINES = r"\s*[\r\n]+"
_THREE_DIGITS = r"\p{N}{1,3}"
_FROM_RIGHT = r"(?r)\p{N}{1,3}"  # searched backwards: 1234567 is 1, 234, 567
_TAIL = f"{_SIGNS}|{_LINES}|{_SPACES}"
_GPT2 = rf"{_SUFFIX}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"


def _words(digits: str, tail: str = _TAIL, letter: str = r"\p{L}") -> str:
    """Words with one sign before them, and digits."""
    return rf"{_ANY_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{letter}+|{digits}|{tail}"


def _cased(digits: str, suffix: str = f"(?:{_ANY_SUFFIX})?", but: str = "") -> str:
    """Words also cut before a capital letter that follows a small one."""
    lead, upper, lower = r"[^\r\n\p{L}\p{N}]?", f"[{_UPPER}{but}]", f"[{_LOWER}{but}]"
    tail = _TAIL if but else _TAIL.replace(r"[\r\n]*", r"[\r\n/]*")
    return f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}|{digits}|{tail}"


def _signed(after_signs: str) -> str:
    """Words and signs apart, but an ASCII sign with the ASCII letters after it."""
    return (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+{after_signs}|{_SPACES}"
    )


_LLAMA3, _QWEN2 = _words(_THREE_DIGITS), _words(r"\p{N}")
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CJK = r"[\u4e00-\u9fa5\u3040-\u30ff]+"
_OTHER_SCRIPTS = r"[\u0800-\u9fa5\uac00-\ud7ff]+"
_FEWER_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
# Cased letters as Unicode once had them: what came since is taken out.
_OLD_CASED = (
    r"(?V1)\s?[[\p{LC}\u0295]--[\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8a\u2d00-\u2d2d"
    r"\ua790-\ua7ff\uab30-\uab6d\U00010570-\U000105bc\U00010d50-\U00010d85"
    r"\U00016e40-\U0001df96]]+"
)
_ASIAN = (
    r"[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-"
    r"\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU = (
    r"[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b"
    rf"\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|{_CJK}"
)

_know("default", r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9]{3}")
_know(
    "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum", _GPT2
)
_know("modern-bert roberta-bpe jina-es jina-de jina-v1-en jina-v2-es jina-v2-de", _GPT2)
_know("jina-v2-code", _GPT2)
_know("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", r"\p{N}", _GPT2)
_know("falcon", r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9]{3}")
_know("dbrx smaug-bpe chatglm-bpe", _LLAMA3)
_know("glm4 glm5", _LLAMA3, whole_words=True)
_know("llama3 llama-v3 llama-bpe pixtral", _LLAMA3, whole_words=True, add_bos=True)
_know("falcon3 falcon-h1 midm-2.0 lfm2 jina-v5-nano", _LLAMA3, whole_words=True, add_bos=True)
_know("jais-2", _LLAMA3.replace(_SPACES, rf"{_FEWER_SPACES}|\s{{1,2}}(?!\S)|\s"))
_know("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", _QWEN2)
_know(
    "qwen35",
    _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"^\s\p{L}", r"^\s\p{L}\p{M}"),
)
_know("ufakzeka", _QWEN2.removeprefix(f"{_ANY_SUFFIX}|"))
_know("laguna", r"[^\n]+|\n+", _QWEN2)
_know("minicpm5", _THREE_DIGITS, _words(r"\p{N}+"), whole_words=True)
_know("bailingmoe bailingmoe2 llada-moe", _QWEN2.replace(_LINES, r"\s*[\r\n]"))
_know("seed-coder", _QWEN2.replace(_SIGNS, r" ?[^\s\p{L}\p{N}\r\n]+"))
_know(
    "exaone-moe",
    _words(
        r"\p{N}",
        rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}",
        letter=r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)",
    ),
)
_know(
    "deepseek-llm",
    r"[\r\n]",
    _OLD_CASED,
    r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+\Z",
    _OTHER_SCRIPTS,
    r"\p{N}+",
)
_know("deepseek-coder", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _OTHER_SCRIPTS, r"\p{N}")
_know(
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    _THREE_DIGITS,
    _CJK,
    _signed(rf"[\r\n]*|{_LINES}"),
)
_know("spark2_5", _THREE_DIGITS, _CJK, _signed(r"|[\r\n]"), r"\p{N}")
_know("afmoe", _FROM_RIGHT, _ASIAN, _signed(rf"[\r\n]*|{_LINES}"))
_know("gpt-4o llama4 kanana2 talkie minimax-m2", _cased(_THREE_DIGITS))
_know("granite-embed-multi-97m", _cased(_THREE_DIGITS), whole_words=True)
_know("tiny_aya cohere2moe", _FROM_RIGHT, _cased(_THREE_DIGITS))
_know("tekken", _cased(r"\p{N}", suffix=""), whole_words=True, add_bos=True)
_know("youtu", _YOUTU, _cased(r"\p{N}"), whole_words=True)
_know("kimi-k2", r"(?V1)\p{Han}+|" + _cased(_THREE_DIGITS, but=r"&&[^\p{Han}]"))
_know("poro-chat bloom gpt3-finnish", _BLOOM)
_know("viking", _BLOOM, r"\p{N}")
_know("superbpe", r"\p{N}+", _FROM_RIGHT)
_know(
    "chameleon",
    "<sentinel:[0-9]+>",
    "IMGIMG[A-I]{1,4}Z",
    "[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
    add_bos=True,
)
_know("gemma4 granite-embed-multi-311m", r"[^\n]+|\n+", add_bos=True, raw=True)
_know("sarvam-moe", r"[^\n]+|\n+", raw=True)


@cache
def splitter(patterns: tuple[str, ...]) -> Splitter:
    """The function that cuts a text by these patterns, made (and compiled) once."""
    steps = [_step(pattern) for pattern in patterns]

    def split(text: str) -> Iterable[str]:
        pieces = [text]
        for step in steps:
            pieces = [part for piece in pieces for part in step(piece) if part]
        return pieces

    return split


def _step(pattern: str) -> Splitter:
    # A group around the whole makes `split` return the matches with what lies between.
    flags, body = regex.fullmatch(r"(\(\?\w+\))?(.*)", pattern, regex.DOTALL).groups("")
    cut: Splitter = regex.compile(f"{flags}({body})").split
    return (lambda text: reversed([*cut(text)])) if flags == "(?r)" else cut
