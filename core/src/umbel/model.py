"""The Python face of Umbel: `load` gives a `Model`, which generates and opens sessions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np

from umbel import gguf, loading
from umbel.draft import LONGEST, LOOKUP, DraftModel, Lookup, Proposer, check_vocabulary
from umbel.engine import Engine
from umbel.errors import OptionError, TemplateError
from umbel.generation import Generation
from umbel.gguf import types
from umbel.locate import find_model
from umbel.runner import Runner, Settings
from umbel.session import Prompt, Session
from umbel.state import Sequence as Seq
from umbel.state import store
from umbel.text import Tokenizer, load_tokenizer
from umbel.text.chat import ChatTemplate, from_metadata


def load(
    path: str | os.PathLike[str],
    device: str = "auto",
    *,
    ctx: int | None = None,
    parallel: int = 1,
    ubatch: int = 512,
    kv: str = "f32",
    threads: int | None = None,
    options: Mapping[str, Mapping[str, object]] | None = None,
    strict: bool = False,
    check: bool = False,
    check_tensors: bool = False,
    draft: str | os.PathLike[str] | None = None,
    draft_max: int = LONGEST,
) -> Model:
    """Opens a GGUF file and makes it ready to run.

    * `path`: a file, a folder with one model, a hub name (`owner/repo:file`), or "demo".
    * `device`: "auto" (the best real one), or names as `umbel devices` lists them, separated
      by commas; what the first cannot run goes to the next, and in the end to the host.
    * `ctx`: tokens of one sequence at most; None: what the model was trained for, up to 4096.
    * `parallel`: how many sequences can be that long at once.
    * `ubatch`: tokens of one step of prefill at most.
    * `kv`: how keys and values are kept: "f32", "f16" or "q8_0".
    * `threads`: for backends that take it; None or 0: as they choose.
    * `options`: of backends, as `-O` gives them: `{"host": {"dequantise": "blocks"}}`.
    * `strict`: a plugin that failed, a fallback to another device and a weight converted at
      load are errors.
    * `check`: computes node by node and names the one that fails or is not finite (slow).
    * `check_tensors`: looks for values that are not finite in all weights first.
    * `draft`: guesses the next tokens, which are checked in one step: "lookup" (from the text
      so far), or the file of a smaller model with the same vocabulary. No text changes.
    * `draft_max`: tokens of one draft at most.

    Raises `ModelFormatError`, `UnsupportedModelError`, `DeviceError`, `OptionError`. What is
    not as one would expect is told on the logger "umbel".
    """
    file = gguf.open(find_model(os.fspath(path)))
    try:
        definition = loading.define(file)
        settings = Settings(
            ctx=loading.context(definition, ctx),
            parallel=loading.number("parallel", parallel, 1),
            ubatch=loading.number("ubatch", ubatch, 1),
            kv=loading.kv_dtype(definition, kv),
            check=check,
            strict=strict,
        )
        threads = loading.number("threads", threads or 0, 0)
        draft_max = loading.number("draft_max", draft_max, 0)
        tokenizer = load_tokenizer(file.metadata, where=str(file.path))
        definition.check_vocabulary(tokenizer.n_vocab)
        if check_tensors:
            for name, info in file.tensors.items():
                types.check(name, file.array(name), info.dtype, file.path)
        devices = loading.targets(device, options, threads, strict)
        runner = Runner(definition, devices, settings)
        loading.report(runner)
        more = {"options": options, "threads": threads, "strict": strict, "check": check}
        proposer = _proposer(draft, tokenizer, runner, device=device, ubatch=ubatch, **more)
    except BaseException:
        file.close()
        raise
    return Model(file, tokenizer, Engine(runner, proposer, draft_max if proposer else 0))


def _proposer(
    draft: str | os.PathLike[str] | None, tokenizer: Tokenizer, runner: Runner, **settings: Any
) -> Proposer | None:
    """What guesses, if anything."""
    if draft is None or draft == LOOKUP:
        return Lookup() if draft else None
    helper = load(draft, ctx=runner.settings.ctx, **settings)
    try:
        if helper.runner.encodes:
            msg = "the draft model is an encoder: it writes no text"
            raise OptionError(msg, where="draft", got=draft)
        check_vocabulary(tokenizer.vocab.tokens, helper.tokenizer.vocab.tokens)
    except BaseException:
        helper.close()
        raise
    return DraftModel(helper.runner, runner.definition.hparams.n_vocab)


class Model(AbstractContextManager["Model"]):
    """A loaded model, for any number of threads. Close it, or use it in a `with` block."""

    def __init__(self, file: gguf.GGUFFile, tokenizer: Tokenizer, engine: Engine) -> None:
        self.file = file
        self.tokenizer = tokenizer
        self.runner = engine.runner
        self.engine = engine

    @property
    def ctx(self) -> int:
        """Tokens of one sequence at most."""
        return self.runner.settings.ctx

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices in the order in which they are asked."""
        return tuple(t.name for t in self.runner.targets)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The template of the file, or None where it has none. A broken one fails when used."""
        return from_metadata(self.file.metadata, *self._ends(), str(self.file.path))

    def _ends(self) -> tuple[str, str]:
        """The texts of the BOS and EOS tokens."""
        ids = (self.tokenizer.bos_id, self.tokenizer.eos_id)
        bos, eos = ("" if i is None else self.tokenizer.vocab.tokens[i] for i in ids)
        return bos, eos

    @cached_property
    def fingerprint(self) -> str:
        """Names this model's weights and state layout, for saved sessions."""
        keys = {k: v for k, v in self.file.metadata.items() if not k.startswith("tokenizer.")}
        digest = hashlib.sha256(f"{self.file.size} {self.runner.settings.kv} {keys}".encode())
        for name, info in self.file.tensors.items():
            digest.update(f"{name} {info.shape} {info.dtype} {info.offset}".encode())
            values = self.file.array(name).reshape(-1)
            digest.update(values[:: max(1, values.size // 1024)].tobytes())  # a sample of each
        return digest.hexdigest()[:32]

    def tokenize(self, text: str | bytes, *, special: bool = False) -> list[int]:
        """Token ids of a text, with a BOS where the model wants one.

        With `special`, the texts of control tokens become those tokens.
        """
        return self.tokenizer.encode(text, special=special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of the ids; control tokens show only with `special`."""
        return self.tokenizer.decode(ids, special=special)

    def generate(self, prompt: Prompt, **settings: Any) -> Generation:
        """Completes a prompt (text or token ids): an iterator of pieces of text.

        * `max_tokens`: how many at most; None: until the model ends, or the context is full.
        * `stop`: a text, or several, that end the answer and are not part of it.
        * `special`: whether texts of control tokens in the prompt become those tokens.
        * `keep`: so many first tokens are kept when the context is full, and half of the
          others dropped; None: the answer ends there.
        * `logprobs`: how many of the best tokens are told with each token; 0: that one only.
        * `draft_max`: tokens of one draft at most; 0: no drafts; None: as the model was loaded.
        * `sampling`: an `umbel.sampling.Settings`; or its fields one by one: `temperature`,
          `top_k`, `seed` ...

        Raises `ContextFullError` when the prompt leaves no room, `SamplingError`,
        `OptionError`, `TokenizerError`; what fails later is raised to the reader.
        """
        session = self.open()
        session._transient = True
        return session.generate(prompt, **settings)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        template_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Generation:
        """Answers a conversation in OpenAI's form: [{"role": "user", "content": "Hi"}].

        The file's chat template is used, or `template` instead; control tokens in the messages
        are plain text. Settings are those of `generate`.
        """
        options = template_options or {}
        ids = self.chat_prompt(messages, tools=tools, template=template, **options)
        return self.generate(ids, **settings)

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        **options: Any,
    ) -> list[int]:
        """The token ids of a conversation in the chat template, with exactly one BOS."""
        chat = self.chat_template
        if template is not None:
            chat = ChatTemplate(template, *self._ends(), where="template")
        if chat is None:
            msg = "the model has no chat template"
            do = "use `generate`, or give a template"
            raise TemplateError(msg, where=self.file.path, do=do)
        text = chat.render(messages, tools, self.tokenizer.control, **options)
        return self.tokenizer.encode(text, special=True, eos=False)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """The logits after each of the tokens: (n, n_vocab) float32."""
        with self.open() as session:
            return session.logits(ids)

    def hidden(self, prompt: Prompt) -> np.ndarray:
        """The hidden states of an encoder (bert): (n, n_embd) float32."""
        if not self.runner.encodes:
            msg = f"{self.runner.definition.architecture.name} is no encoder: it has logits"
            raise OptionError(msg, where=self.file.path)
        given = self.tokenize(prompt) if isinstance(prompt, str | bytes) else prompt
        ids = self.tokenizer.check_ids(given)
        if not ids:
            msg = "there is nothing to encode"
            raise OptionError(msg, where="prompt", expected="at least one token")
        return self.engine.call(lambda: self.runner.forward(Seq(), ids, every=True))

    def open(self) -> Session:
        """An empty session: one sequence that can be fed, forked, rewound and saved."""
        if self.runner.encodes:
            msg = f"{self.runner.definition.architecture.name} is an encoder: it writes no text"
            raise OptionError(msg, where=self.file.path, do="use `Model.hidden`")
        self.engine.post(lambda: None)  # is refused when the model is closed
        return Session(self)

    def restore(self, path: str | os.PathLike[str]) -> Session:
        """The session that `Session.save` wrote; refused when it is another model's."""
        session, runner = self.open(), self.runner
        n_vocab = self.tokenizer.n_vocab
        session._sequence = self.engine.call(
            lambda: store.load(path, runner.cache, runner.states, self.fingerprint, n_vocab)
        )
        session._tokens = list(session._sequence.tokens)
        return session

    def close(self) -> None:
        """Stops everything that runs on the model and gives its memory back."""
        self.engine.close()
        for runner in self.engine.runners:
            runner.close()
            runner.definition.file.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.engine.stop()  # its thread would keep everything
