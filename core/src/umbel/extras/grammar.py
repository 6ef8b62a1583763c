"""What an answer must be: JSON after a schema, a match of a regex, a text of a grammar.

`llguidance` (the extra [grammar]) reads the grammar and follows the text; here stands what it
is told of the vocabulary, and what becomes of its answers. A control token is never part of a
text, and the tokens that end an answer are allowed exactly where the text may end.
"""

import copy
import importlib
import json
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from umbel.errors import OptionError, SamplingError

# Where only one text can follow, the library would cut it into tokens by itself. The model has
# learnt to do that: it chooses among all that fit.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'
# One blank, or a new line with its indent: JSON has no limit, and small models know none.
_BLANKS = r"( |\n[ \t]{0,20})"
_PICTURES = re.compile(r"^at 1\(8\): |\n(<state>| +\d+ \|).*", re.S)
_ESCAPE = re.compile(r"\\(?:u(\w{4})|U(\w{8})|.)", re.S)  # of GBNF


@lru_cache(maxsize=16)
def checked(name: str, text: str) -> str:
    """A constraint of that kind as the library writes it; `SamplingError` says why not."""
    library = _library()
    try:
        lark = _lark(name, text) + _OPTIONS
        # A warning is an error too: it tells of a keyword that is ignored or, since no
        # vocabulary is given, of a control token in the text.
        told = library.LLMatcher.validate_grammar_with_warnings(lark)[1]
    except Exception as error:  # of many kinds: what reads GBNF has no type for its own
        told = [str(error)]
    if told:
        msg = f"the {name.replace('_', ' ')} cannot be obeyed"
        raise SamplingError(msg, where=name, got=_line(told[0]))
    return lark


def _lark(name: str, text: str) -> str:
    if name == "json_schema":
        schema = json.loads(text)
        schema.setdefault("x-guidance", {"whitespace_pattern": _BLANKS})
        return f"start: %json {json.dumps(schema)}"
    if name == "regex":
        return f"start: /{_library().regex_to_lark(text or '(?:)', '')}/"
    if not re.search(r"(?m)^\s*[\w-]+\s*::=", text):
        return text
    return str(_library(".gbnf_to_lark").gbnf_to_lark(_ESCAPE.sub(_unescape, text)))


def _unescape(escape: re.Match[str]) -> str:
    """The character that is meant, where the library would take the escape for another."""
    digits = escape[1] or escape[2]
    if not digits:
        return escape[0]
    code = int(digits, 16)
    return chr(code) if code >= 0x80 else f"\\x{code:02x}"


def _line(told: str) -> str:
    """What the library says in one line, without its pictures and dumps."""
    return f"{' '.join(_PICTURES.sub('', told).split()):.300}"


def _library(part: str = "") -> Any:
    try:
        return importlib.import_module(f"llguidance{part}")
    except ImportError as error:
        msg = "json_schema, regex and grammar need the extra [grammar]"
        do = "pip install 'umbel-core[grammar]'"
        raise OptionError(msg, got=str(error), do=do) from error


class Vocabulary:
    """The tokens of a model as the library wants them. Takes a second: make it once.

    `pieces` are the bytes that each token adds to a text; one without any is in no text. The
    library knows of one end, behind all tokens: where that is allowed, all `ends` are.
    """

    def __init__(self, pieces: Iterable[bytes], ends: Collection[int]) -> None:
        library = _library()
        tokens = [b"" if i in ends else piece for i, piece in enumerate(pieces)]
        self.end, self.ends = len(tokens), sorted(ends)
        told = SimpleNamespace(tokens=[*tokens, b""], eos_token_id=self.end, bos_token_id=None)
        self.known = library.LLTokenizer(library.TokenizerWrapper(told))


class Constraint:
    """How far the text of one answer has come in its grammar. A deep copy goes on by itself."""

    def __init__(self, vocabulary: Vocabulary, grammar: str) -> None:
        self._vocabulary = vocabulary
        self._matcher = _library().LLMatcher(vocabulary.known, grammar, log_level=0)
        self.mask()  # some grammars turn out only here to have no text

    @property
    def done(self) -> bool:
        """Whether nothing can follow but the end."""
        return bool(self._matcher.is_stopped())

    def mask(self) -> np.ndarray:
        """Which tokens may come next: (n_vocab,) bool."""
        end, ends = self._vocabulary.end, self._vocabulary.ends
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(bits, count=end + 1, bitorder="little").view(bool)
        allowed[ends] = allowed[end]
        return allowed[:end]

    def accept(self, token: int) -> None:
        """Goes on after a token that the mask allows; an end adds nothing."""
        if token not in self._vocabulary.ends:
            self._matcher.consume_token(token)
            self._check()

    def __deepcopy__(self, memo: object) -> "Constraint":
        other = copy.copy(self)
        other._matcher = self._matcher.deep_copy()
        return other

    def _check(self) -> None:
        if self._matcher.is_error():
            msg = "the grammar has no text, or is too much to follow"
            raise SamplingError(msg, got=_line(self._matcher.get_error()))
