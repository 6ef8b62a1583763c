"""The `tokenizer.*` keys of a file: vocabulary, tokens with a role, chat templates.

Of the files that describe a tokenizer the first of these is read: tokenizer.json,
tokenizer.model, vocab.txt. What tokenizer_config.json and the like say of single tokens counts
in all cases.
"""

from __future__ import annotations

import logging
from typing import Any

from umbel.errors import ModelFormatError, OptionError
from umbel.text.vocab import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from umbel.tools.convert.folder import Config, Folder
from umbel.tools.convert.tokenizer_json import tokenizer_json
from umbel.tools.convert.vocabulary import Vocabulary, added_kind, sentence_pieces, vocab_txt

log = logging.getLogger("umbel.convert")

ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator"}
ROLES |= {"pad": "padding", "cls": "cls", "mask": "mask"}
ENDS = ("eos", "eot", "eom")
TEXT = (NORMAL, USER_DEFINED)  # kinds of tokens that a text may become
TEMPLATE = "tokenizer.chat_template"
# What holds where no file says it: whether BOS and EOS are put around a text.
AROUND = {"gpt2": (False, False), "llama": (True, False)}
AROUND |= {"t5": (False, True), "bert": (True, True)}
PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")  # add what tokenizer.json says alone


def tokenizer_keys(folder: Folder, rows: int) -> dict[str, Any]:
    """All keys; `rows` are those of the embedding, each of which must be a token."""
    options = folder.config_of("tokenizer_config.json")
    found = _read(folder, options)
    _add_tokens(found, folder, options)
    _check(found, rows)
    roles = _roles(found, folder, options)  # first: it makes control tokens of some
    keys = {
        "model": found.model,
        "pre": "default",
        **found.keys,
        **_lists(found, rows),
        **roles,
    }
    templates = _templates(folder, options)
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()} | templates


def _read(folder: Folder, options: Config) -> Vocabulary:
    if (data := folder.json("tokenizer.json")) is not None:
        return tokenizer_json(data, str(folder.path / "tokenizer.json"))
    if (path := folder.path / "tokenizer.model").exists():
        return sentence_pieces(path)
    if (text := folder.text("vocab.txt")) is not None:
        return vocab_txt(text, options, str(folder.path / "vocab.txt"))
    msg, files = "the folder holds no tokenizer", "tokenizer.json, tokenizer.model or vocab.txt"
    do = "save it again with transformers: AutoTokenizer.from_pretrained"
    raise OptionError(msg, where=folder.path, expected=files, do=do)


def _add_tokens(found: Vocabulary, folder: Folder, options: Config) -> None:
    """The tokens that were added later, by what the other files say."""
    later = folder.config_of("added_tokens.json")
    for text in later.values:
        if found.tokens.get(i := later.count(text)) != text:
            found.add(i, text, USER_DEFINED)
    for number, token in options.get("added_tokens_decoder", dict, {}).items():
        if not number.isdecimal() or not isinstance(token, dict) or "content" not in token:
            options.refuse("added_tokens_decoder", "ids with their tokens", {number: token})
        i = int(number)
        if found.tokens.get(i) != token["content"] or found.kinds.get(i, NORMAL) in TEXT:
            found.add(i, token["content"], added_kind(token))


def _check(found: Vocabulary, rows: int) -> None:
    for i, text in found.tokens.items():
        if type(i) is not int or i < 0 or not isinstance(text, str):
            msg, got = "a token is malformed", f"{i!r:.40}: {text!r:.80}"
            raise ModelFormatError(msg, where=found.where, expected="an id and a text", got=got)
    last = max(found.tokens, default=-1)
    if last >= rows:
        msg = "the tokenizer has tokens that are not in the model's embedding"
        raise ModelFormatError(msg, where=found.where, expected=f"ids below {rows}", got=last)


def _lists(found: Vocabulary, rows: int) -> dict[str, Any]:
    """A value for each token; rows of the embedding without one get one that no text has."""
    tokens = [found.tokens.get(i, f"[PAD{i}]") for i in range(rows)]
    kinds = [found.kinds.get(i, NORMAL) if i in found.tokens else UNUSED for i in range(rows)]
    lists: dict[str, Any] = {"tokens": tokens, "token_type": kinds}
    if found.scores is not None:
        worst = min(found.scores.values(), default=0.0)
        lists["scores"] = [found.scores.get(i, worst) for i in range(rows)]
    return lists


def _roles(found: Vocabulary, folder: Folder, options: Config) -> dict[str, Any]:
    """The ids of tokens with a role, and which of them are put around a text."""
    ids = found.ids()
    special = folder.config_of("special_tokens_map.json")
    roles = dict(found.roles)
    for role in ROLES:
        token = options.values.get(f"{role}_token") or special.values.get(f"{role}_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text in ids:
            roles[role] = ids[text]
            if found.kinds.get(ids[text], NORMAL) in TEXT:
                found.kinds[ids[text]] = CONTROL
    unknown = next((i for i, kind in found.kinds.items() if kind == UNKNOWN), None)
    if unknown is not None:
        roles.setdefault("unk", unknown)
    generation = folder.config_of("generation_config.json")
    for role in ("bos", "pad"):
        number = folder.config.values.get(f"{role}_token_id")
        if type(number) is int and number in found.tokens:
            roles.setdefault(role, number)
    around = found.added or {}
    if around.get("bos"):
        roles["bos"] = around["bos"][0]
    ends = [*around.get("eos", ()), *([roles["eos"]] if "eos" in roles else [])]
    ends += [i for c in (folder.config, generation) for i in _ends(c, found)]
    ends = list(dict.fromkeys(ends))
    roles |= dict(zip(ENDS, ends, strict=False))
    if bad := [i for i in roles.values() if i not in found.tokens]:
        msg = "a special token is not in the vocabulary"
        raise ModelFormatError(msg, where=found.where, got=bad[0])
    if left := [repr(found.tokens[i]) for i in ends[len(ENDS) :]]:
        text = "%s: of the tokens that end a text, these are not marked: %s"
        log.warning(text, found.where, ", ".join(left))
    keys: dict[str, Any] = {f"{ROLES.get(role, role)}_token_id": i for role, i in roles.items()}
    plain = options.values.get("tokenizer_class") in PLAIN
    usual = (False, False) if plain else AROUND[found.model]
    for role, default in zip(("bos", "eos"), usual, strict=True):
        said = bool(around[role]) if found.added is not None else default and role in roles
        keys[f"add_{role}_token"] = options.get(f"add_{role}_token", bool, said)
    return keys


def _ends(c: Config, found: Vocabulary) -> list[int]:
    """The tokens that end a text: one, or a list of them."""
    value = c.values.get("eos_token_id")
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(i) is not int or i not in found.tokens for i in listed):
        c.refuse("eos_token_id", "ids of tokens", value)
    return listed


def _templates(folder: Folder, options: Config) -> dict[str, Any]:
    """The chat template, and those that have a name of their own."""
    value = options.values.get("chat_template")
    alone = folder.config_of("chat_template.json").values.get("chat_template")
    named: dict[str, Any] = {"default": alone if value is None else value}
    if isinstance(value, list):
        pairs = [(t.get("name"), t.get("template")) for t in value if isinstance(t, dict)]
        named = {name: text for name, text in pairs if isinstance(name, str)}
    for path in sorted(folder.path.glob("additional_chat_templates/*.jinja")):
        named[path.stem] = folder.text(str(path.relative_to(folder.path)))
    if (text := folder.text("chat_template.jinja")) is not None:
        named["default"] = text
    texts = {name: text for name, text in named.items() if isinstance(text, str)}
    keys: dict[str, Any] = {TEMPLATE: texts.pop("default")} if "default" in texts else {}
    if texts:
        keys["tokenizer.chat_templates"] = [*texts]
    return keys | {f"{TEMPLATE}.{name}": text for name, text in texts.items()}
