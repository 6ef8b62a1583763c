"""Tokenizers of all kinds give the ids of the libraries that made them."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest
from umbel.errors import ModelFormatError, OptionError, UmbelError, UnsupportedModelError
from umbel.text import Tokenizer, load_tokenizer
from umbel.tools.convert.folder import Folder
from umbel.tools.convert.tokenizer import tokenizer_keys

STORED = Path(__file__).parents[2] / "data/convert/tokenizers.json.gz"
DATA = json.loads(gzip.decompress(STORED.read_bytes()))
ROWS = 700  # of the embedding: more than there are tokens


@pytest.fixture
def folder(tmp_path, make):
    """Writes a stored tokenizer with further files beside it; the folder."""

    def written(name: str = "bytes-gpt2", **files) -> Folder:
        make.write(tmp_path, "config.json", {})
        for file, data in DATA["folders"][name]["files"].items():
            (tmp_path / file).write_bytes(base64.b64decode(data))
        for file, value in files.items():
            make.write(tmp_path, f"{file}.json", value)
        return Folder(tmp_path)

    return written


@pytest.fixture
def changed(folder, make):
    """Writes a stored tokenizer.json after a change of it; the folder."""

    def written(name, change) -> Folder:
        found = folder(name)
        data = found.json("tokenizer.json")
        change(data)
        make.write(found.path, "tokenizer.json", data)
        return found

    return written


def load(folder: Folder) -> Tokenizer:
    keys = tokenizer_keys(folder, ROWS)
    listed = {k: list(v) if isinstance(v, bytes) else v for k, v in keys.items()}
    return load_tokenizer(listed)


def key(folder: Folder, name: str):
    return tokenizer_keys(folder, ROWS).get(f"tokenizer.ggml.{name}")


@pytest.mark.parametrize("name", DATA["folders"])
def test_the_ids_of_hard_texts(folder, name):
    """71 texts: scripts, emoji, blanks of all kinds, digits, contractions, nothing."""
    tokenizer = load(folder(name))
    around = name != "pieces-model" and name != "unigram-model"  # sentencepiece adds nothing
    texts = zip(DATA["texts"], DATA["folders"][name]["ids"], strict=True)
    composed = {"e\u0301", "a\u0301"} if name == "bytes-qwen2" else set()  # see the next test
    wrong = [
        text
        for text, ids in texts
        if text not in composed and tokenizer.encode(text, bos=around, eos=around) != ids
    ]
    assert wrong == []
    assert len(DATA["texts"]) == 71


def test_a_normaliser_that_gguf_lacks_is_told(folder, caplog):
    """Qwen composes characters first (NFC); the file cannot say so."""
    load(folder("bytes-qwen2"))
    assert "NFC" in caplog.text


@pytest.mark.parametrize(
    ("name", "pre"),
    [
        ("bytes-gpt2", "gpt-2"),
        ("bytes-digits", "smollm"),
        ("bytes-llama3", "llama-bpe"),
        ("bytes-qwen2", "qwen2"),
    ],
)
def test_the_pre_tokenizer_gets_its_name(folder, name, pre):
    """By what it does, not by how it is spelt."""
    assert key(folder(name), "pre") == pre


def test_merges_as_texts_and_as_pairs(changed, folder):
    """Both forms of a tokenizer.json mean the same."""
    expected = key(folder("bytes-gpt2"), "merges")

    def join(data):
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]

    assert key(changed("bytes-gpt2", join), "merges") == expected
    assert all(isinstance(merge, str) for merge in expected)


def test_scores_stand_for_the_order_of_merges(folder):
    """What is merged first has the best score; bytes and unknown are kinds of their own."""
    found = folder("pieces-json")
    scores = dict(zip(key(found, "tokens"), key(found, "scores"), strict=True))
    first = found.json("tokenizer.json")["model"]["merges"][0]
    assert scores["".join(first)] == max(scores.values())
    kinds = dict(zip(key(found, "tokens"), key(found, "token_type"), strict=True))
    assert (kinds["<unk>"], kinds["<s>"], kinds["<0x0A>"], kinds["▁"]) == (2, 3, 6, 1)


def test_merges_that_scores_cannot_say_are_refused(changed):
    """Without a merge that its neighbours imply, scores would merge too much."""

    def drop(data):
        del data["model"]["merges"][0]

    with pytest.raises(UnsupportedModelError, match="may not become") as info:
        load(changed("pieces-json", drop))
    assert "tokenizer.model" in str(info.value.do)


def test_kinds_and_padding(folder):
    """Special tokens are control, added ones user-defined, rows without a token unused."""
    found = folder("bytes-gpt2")
    tokens, kinds = key(found, "tokens"), key(found, "token_type")
    named = dict(zip(tokens, kinds, strict=True))
    assert (named["<s>"], named["<tool>"], named["[PAD699]"]) == (3, 4, 5)
    assert len(tokens) == len(kinds) == ROWS
    assert load(found).encode("a<tool>b", bos=False)[1] == tokens.index("<tool>")


def test_more_tokens_than_rows_are_refused(folder):
    """A token without a row in the embedding could not be read."""
    with pytest.raises(ModelFormatError, match="not in the model's embedding"):
        tokenizer_keys(folder(), 100)


def test_roles_from_all_files(folder):
    """By name in tokenizer_config or special_tokens_map, by id in the other two."""
    found = folder(
        tokenizer_config={"bos_token": "<s>", "pad_token": {"content": "<unk>"}},
        special_tokens_map={"eos_token": "</s>", "bos_token": "</s>"},
        generation_config={"eos_token_id": [1, 480, 2]},
    )
    assert [key(found, f"{role}_token_id") for role in ("bos", "eos", "eot", "eom")] == [
        *(0, 1, 480, 2)
    ]
    assert key(found, "padding_token_id") == 2
    assert load(found).vocab.ends >= {1, 2, 480}


def test_more_ends_than_gguf_has_names_for_are_told(folder, caplog):
    """Three are marked; a line names the others."""
    tokenizer_keys(folder(generation_config={"eos_token_id": [1, 2, 480, 7]}), ROWS)
    assert "end a text" in caplog.text


@pytest.mark.parametrize("ids", [9999, "x", [1, 9999], {"a": 1}, [[1]]])
def test_an_end_that_is_no_token_is_refused(folder, ids):
    """Nobody would notice before a text goes on for ever."""
    with pytest.raises(UmbelError, match="eos_token_id"):
        tokenizer_keys(folder(generation_config={"eos_token_id": ids}), ROWS)


def test_what_is_put_around_a_text(folder, changed):
    """The configuration counts more than the template of tokenizer.json, and that than none."""
    assert (key(folder(), "add_bos_token"), key(folder(), "add_eos_token")) == (True, False)
    assert key(folder(tokenizer_config={"add_bos_token": False}), "add_bos_token") is False
    none = changed("pieces-json", lambda data: data.update(post_processor=None))
    (none.path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    assert key(none, "add_bos_token") is True  # as sentencepiece's readers do
    for name, adds in (("LlamaTokenizerFast", True), ("PreTrainedTokenizerFast", False)):
        options = {"bos_token": "<s>", "tokenizer_class": name}
        (none.path / "tokenizer_config.json").write_text(json.dumps(options))
        assert key(none, "add_bos_token") is adds


@pytest.mark.parametrize("merging", [True, False])
def test_a_space_before_a_space_is_told(changed, caplog, merging):
    """With Unigram, where several spaces do not become one anyway."""

    def pre_tokenizer(data):
        marked = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
        parts = [{"type": "WhitespaceSplit"}, marked] if merging else [marked]
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
        data["normalizer"] = None

    tokenizer_keys(changed("unigram-json", pre_tokenizer), ROWS)
    assert ("starts with a space" in caplog.text) is not merging


def test_an_end_of_its_own_in_the_template(changed):
    """What the template puts after a text is what is added, though another ends answers."""

    def end(data):
        data["post_processor"]["single"].append({"SpecialToken": {"id": "<unk>", "type_id": 0}})

    found = changed("bytes-gpt2", end)
    (found.path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert load(found).encode("a")[-1] == 2
    assert (key(found, "eos_token_id"), key(found, "eot_token_id")) == (2, 1)


def test_tokens_that_were_added_later(folder):
    """added_tokens.json and tokenizer_config name tokens that the vocabulary lacks."""
    found = folder(
        "pieces-model",
        added_tokens={"<extra>": 640},
        tokenizer_config={"added_tokens_decoder": {"641": {"content": "<c>", "special": True}}},
    )
    kinds = key(found, "token_type")
    assert key(found, "tokens")[640:642] == ["<extra>", "<c>"]
    assert kinds[640:642] == [4, 3]


TEMPLATE = "tokenizer.chat_template"


def test_chat_templates(folder):
    """A text, a list of named ones, or files of their own, which count most."""
    one = folder(tokenizer_config={"chat_template": "A"})
    assert tokenizer_keys(one, ROWS)[TEMPLATE] == "A"
    listed = [{"name": "default", "template": "B"}, {"name": "tool_use", "template": "C"}]
    keys = tokenizer_keys(folder(tokenizer_config={"chat_template": listed}), ROWS)
    assert (keys[TEMPLATE], keys[f"{TEMPLATE}.tool_use"]) == ("B", "C")
    assert keys["tokenizer.chat_templates"] == ["tool_use"]
    (one.path / "chat_template.jinja").write_text("D")
    (one.path / "additional_chat_templates").mkdir()
    (one.path / "additional_chat_templates/rag.jinja").write_text("E")
    keys = tokenizer_keys(one, ROWS)
    assert (keys[TEMPLATE], keys[f"{TEMPLATE}.rag"]) == ("D", "E")


@pytest.mark.parametrize(
    ("name", "component", "value"),
    [
        ("bytes-gpt2", "normalizer", {"type": "Lowercase"}),
        ("pieces-json", "normalizer", {"type": "NFKC"}),
        ("words", "normalizer", {"type": "NFD"}),
        ("words", "pre_tokenizer", {"type": "Whitespace"}),
        ("bytes-gpt2", "pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True}),
        ("pieces-json", "pre_tokenizer", {"type": "Punctuation"}),
    ],
)
def test_what_gguf_cannot_express_is_refused(changed, name, component, value):
    """Texts would be cut otherwise than the model has learnt it."""
    with pytest.raises(UnsupportedModelError) as info:
        load(changed(name, lambda data: data.update({component: value})))
    assert value["type"] in str(info.value.got)


def test_a_pattern_that_nobody_knows_is_shown(changed):
    """The message holds it, so that it can be told to others."""
    rare = {"type": "Split", "behavior": "Isolated", "invert": False}
    parts = [rare | {"pattern": {"Regex": r"\p{L}{1,7}"}}]
    parts.append({"type": "ByteLevel", "add_prefix_space": False, "use_regex": False})
    pre = {"type": "Sequence", "pretokenizers": parts}
    with pytest.raises(UnsupportedModelError, match="cuts texts") as info:
        load(changed("bytes-gpt2", lambda data: data.update(pre_tokenizer=pre)))
    assert r"\\p{L}{1,7}" in str(info.value.got)


@pytest.mark.parametrize(
    "text", ['{"model": 3}', "{}", "[]", "{", '{"model": {"type": "Unigram"}}']
)
def test_a_malformed_tokenizer_json(folder, text):
    """One typed error, whatever it is."""
    found = folder()
    (found.path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelFormatError):
        load(found)


@pytest.mark.parametrize("cut", [0, 1, 5, 1000, -1])
def test_a_truncated_tokenizer_model(folder, cut):
    """The file ends in the middle, or holds nothing."""
    found = folder("pieces-model")
    path = found.path / "tokenizer.model"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UmbelError) as info:
        load(found)
    assert str(path) in str(info.value.where)


def test_no_tokenizer_at_all(tmp_path, make):
    """The message says which files there could be."""
    make.write(tmp_path, "config.json", {})
    with pytest.raises(OptionError, match="no tokenizer") as info:
        tokenizer_keys(Folder(tmp_path), ROWS)
    assert "tokenizer.json" in str(info.value)


def test_a_token_with_a_role_is_a_control_token(folder):
    """Also where the vocabulary has it as an ordinary one."""
    found = folder("pieces-model", tokenizer_config={"eos_token": "▁the"})
    tokens, kinds = key(found, "tokens"), key(found, "token_type")
    assert kinds[tokens.index("▁the")] == 3
    assert key(found, "eos_token_id") == tokens.index("▁the")
