"""Small tokenizers of all kinds, trained on the documentation, with the ids of hard texts.

`python tests/convert/tokenizers_made.py` writes what the tests of the core keep of them. The
ids are those of the libraries that whoever published such a folder used: `tokenizers` for a
tokenizer.json, `sentencepiece` for a tokenizer.model.
"""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from umbel.tools.convert import vocabulary

ROOT = Path(__file__).parents[2]
DATA = ROOT / "core/tests/data/convert/tokenizers.json.gz"
TEXTS = ROOT / "core/tests/text/data/gpt-2.json.gz"
SPECIAL = ["<s>", "</s>", "<unk>"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OWN_TEXTS = [" leading", "trailing ", "  two  spaces  ", "ﬁne Ａ", "a\u0301"]


def texts() -> list[str]:
    """Those that the tests of the tokenizers have, and some more."""
    cases = json.loads(gzip.decompress(TEXTS.read_bytes()))["cases"]
    return [*(text for text, _ in cases), *OWN_TEXTS]


def corpus() -> list[str]:
    pages = sorted((ROOT / "docs").glob("*.md"))
    lines = [line for page in pages for line in page.read_text("utf-8").splitlines()]
    return lines + [text for text in texts() for _ in range(3)]


def byte_level(pre: Any, *, normalizer: Any = None, whole: bool = False) -> Tokenizer:
    made = Tokenizer(models.BPE(ignore_merges=whole))
    made.pre_tokenizer = pre
    if normalizer is not None:
        made.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=480, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(corpus(), trainer)
    made.add_tokens(["<tool>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return made


def split(pattern: str) -> Any:
    parts = [pre_tokenizers.Split(Regex(pattern), "isolated")]
    return pre_tokenizers.Sequence([*parts, bytes_only(use_regex=False)])


def bytes_only(*, use_regex: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def word_piece(*, lower: bool) -> Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lower)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=480, special_tokens=special, limit_alphabet=120, show_progress=False
    )
    made.train_from_iterator(corpus(), trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


RULES = "FB01\t66 69\nFF21\t41\n"  # the ligature fi, a wide A


def sentence_pieces(kind: str, *, rules: str = RULES, **how: Any) -> bytes:
    """A tokenizer.model; of the unigram kind with two rules of normalisation."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [" ".join(line.split()) for line in corpus() if len(line) < 4000]
        (folder / "text").write_text("\n".join(lines))
        (folder / "rules").write_text(rules)
        own = {"normalization_rule_tsv": str(folder / "rules")}
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"),
            model_prefix=str(folder / "made"),
            vocab_size=640,
            model_type=kind,
            character_coverage=0.98,
            minloglevel=2,
            **(own if kind == "unigram" else {"normalization_rule_name": "identity"}),
            **how,
        )
        return (folder / "made.model").read_bytes()


def from_sentence_pieces(model: bytes) -> Tokenizer:
    """The tokenizer.json that converters made of Llama's tokenizer.model.

    A pair of tokens may be merged where the two join to a token; in the order of scores.
    """
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    names = [pieces.id_to_piece(i) for i in range(len(pieces))]
    ids = {name: i for i, name in enumerate(names)}
    cuts = [
        (-pieces.get_score(i), k, len(name) - k, name)
        for i, name in enumerate(names)
        for k in range(1, len(name))
        if name[:k] in ids and name[k:] in ids
    ]
    merges = [(name[:k], name[k:]) for _, k, _, name in sorted(cuts)]
    made = Tokenizer(
        models.BPE(
            vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.ByteFallback()
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return made


def unigram() -> Tokenizer:
    """The tokenizer.json of a T5: each blank is a space first, and words are cut at spaces."""
    blanks = "\t\n\x0b\x0c\r\x85\xa0\u2003\u2028\u2029\u3000"
    rules = RULES + "".join(f"{ord(c):X}\t20\n" for c in blanks)
    model = sentence_pieces("unigram", rules=rules)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(len(pieces))]
    made = Tokenizer(models.Unigram(vocab, unk_id=pieces.unk_id()))
    with tempfile.NamedTemporaryFile() as file:
        file.write(model)
        file.flush()
        charsmap = vocabulary.sentence_pieces(Path(file.name)).keys["precompiled_charsmap"]
    made.normalizer = normalizers.Precompiled(charsmap)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", pieces.eos_id())]
    )
    return made


def ids_of(files: dict[str, bytes]) -> Callable[[str], list[int]]:
    """How the library that made the files encodes a text."""
    if "tokenizer.json" in files:
        made = Tokenizer.from_str(files["tokenizer.json"].decode())
        return lambda text: list(made.encode(text).ids)
    if "tokenizer.model" in files:
        return sentencepiece.SentencePieceProcessor(model_proto=files["tokenizer.model"]).encode
    lower = json.loads(files["tokenizer_config.json"])["do_lower_case"]
    lines = files["vocab.txt"].decode().splitlines()
    made = word_piece(lower=lower)
    made.model = models.WordPiece({line: i for i, line in enumerate(lines)}, unk_token="[UNK]")
    return lambda text: list(made.encode(text).ids)


def folders() -> dict[str, dict[str, bytes]]:
    """The files of each kind of folder."""
    digits = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), bytes_only(use_regex=True)]
    )
    bpe = sentence_pieces("bpe", byte_fallback=True, remove_extra_whitespaces=False)
    made = {
        "bytes-gpt2": byte_level(bytes_only(use_regex=True)),
        "bytes-digits": byte_level(digits),
        "bytes-llama3": byte_level(split(LLAMA3), whole=True),
        "bytes-qwen2": byte_level(
            split(LLAMA3.replace("{1,3}", "")), normalizer=normalizers.NFC()
        ),
        "pieces-json": from_sentence_pieces(bpe),
        "unigram-json": unigram(),
        "words": word_piece(lower=True),
        "words-cased": word_piece(lower=False),
    }
    files = {name: {"tokenizer.json": t.to_str().encode()} for name, t in made.items()}
    files["pieces-model"] = {"tokenizer.model": bpe}
    files["unigram-model"] = {"tokenizer.model": sentence_pieces("unigram")}
    words = made["words-cased"].get_vocab()
    lines = "".join(f"{word}\n" for word in sorted(words, key=lambda word: words[word]))
    config = json.dumps({"do_lower_case": False}).encode()
    files["words-txt"] = {"vocab.txt": lines.encode(), "tokenizer_config.json": config}
    return files


def main() -> None:
    """Writes the file that the tests of the core read."""
    stored = {}
    for name, files in folders().items():
        encode = ids_of(files)
        coded = {file: base64.b64encode(data).decode() for file, data in files.items()}
        stored[name] = {"files": coded, "ids": [encode(text) for text in texts()]}
    data = json.dumps({"texts": texts(), "folders": stored}).encode()
    DATA.write_bytes(gzip.compress(data, mtime=0))


if __name__ == "__main__":
    main()
