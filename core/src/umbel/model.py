"""A loaded model: it generates, chats, embeds and opens sessions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any

import attrs
import numpy as np

from umbel import embedding, gguf
from umbel.adapters import Wanted, read
from umbel.engine import Engine
from umbel.errors import OptionError, TemplateError
from umbel.extras.grammar import Vocabulary
from umbel.generation import Generation
from umbel.models.builder import LORA
from umbel.runner import Runner
from umbel.session import Prompt, Session
from umbel.state import Mix, store
from umbel.text import Tokenizer
from umbel.text.chat import ChatTemplate, from_metadata


class Model(AbstractContextManager["Model"]):
    """A loaded model, for any number of threads. Close it, or use it in a `with` block."""

    def __init__(
        self,
        file: gguf.GGUFFile,
        tokenizer: Tokenizer,
        engine: Engine,
        adapters: Mapping[str, float],
    ) -> None:
        self.file = file
        self.tokenizer = tokenizer
        self.runner = engine.runner
        self.engine = engine
        self.default_adapters = dict(adapters)  # with scales: of who does not say

    @property
    def ctx(self) -> int:
        """Tokens of one sequence at most."""
        return self.runner.settings.ctx

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices in the order in which they are asked, those for prompts first."""
        return tuple(t.name for t in self.runner.every)

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
    def vocabulary(self) -> Vocabulary:
        """What constraints choose from."""
        pieces = map(self.tokenizer.token_bytes, range(self.tokenizer.n_vocab))
        return Vocabulary(pieces, self.tokenizer.vocab.ends)

    @cached_property
    def fingerprint(self) -> str:
        """Names this model's weights and state layout, for saved sessions."""
        keys = {k: v for k, v in self.file.metadata.items() if not k.startswith("tokenizer.")}
        states = self.runner.states.tensors.values()
        kept = [(t.name, t.dtype) for t in states if not t.name.startswith(LORA)]
        digest = hashlib.sha256(f"{self.file.size} {kept} {keys}".encode())
        for name, info in self.file.tensors.items():
            digest.update(f"{name} {info.shape} {info.dtype} {info.offset}".encode())
            values = self.file.array(name).reshape(-1)
            digest.update(values[:: max(1, values.size // 1024)].tobytes())  # a sample of each
        return digest.hexdigest()[:32]

    @property
    def adapters(self) -> list[str]:
        """The names of the adapters that are loaded."""
        return self.runner.adapters.names

    def load_adapter(self, path: str | os.PathLike[str], name: str | None = None) -> str:
        """Puts an adapter into a free slot, or in the place of the one with its name.

        Gives its name: the file's, unless one is told. Only who asks for the name uses it; if
        it has the name of one given to `load`, that is who does not say otherwise.
        """
        adapter = read(path, self.runner.definition)
        adapter = attrs.evolve(adapter, name=str(name or adapter.name))
        self.engine.call(lambda: self.runner.adapters.put(adapter))
        return adapter.name

    def unload_adapter(self, name: str) -> None:
        """Frees the slot of an adapter; sessions that use it fail at their next step."""
        # First of all nobody asks for it unknowingly any more; others may be looking now.
        self.default_adapters = {k: v for k, v in self.default_adapters.items() if k != name}
        self.engine.call(lambda: self.runner.adapters.remove(name))

    def mix(self, adapters: Wanted) -> Mix:
        """These adapters as sequences keep them; None: those that everybody uses."""
        self.engine.post(lambda: None)  # is refused when the model is closed
        wanted = self.default_adapters if adapters is None else adapters
        return self.runner.adapters.mix(wanted)

    def tokenize(self, text: str | bytes, *, special: bool = False) -> list[int]:
        """Token ids of a text, with a BOS where the model wants one.

        With `special`, the texts of control tokens become those tokens.
        """
        return self.tokenizer.encode(text, special=special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of the ids; control tokens show only with `special`."""
        return self.tokenizer.decode(ids, special=special)

    def generate(
        self, prompt: Prompt, *, adapters: Wanted = None, **settings: Any
    ) -> Generation:
        """Completes a prompt (text or token ids): an iterator of pieces of text.

        * `max_tokens`: how many at most; None: until the model ends, or the context is full.
        * `stop`: a text, or several, that end the answer and are not part of it.
        * `special`: whether texts of control tokens in the prompt become those tokens.
        * `keep`: so many first tokens are kept when the context is full, and half of the
          others dropped; None: the answer ends there.
        * `logprobs`: how many of the best tokens are told with each token; 0: that one only.
        * `adapters`: names of loaded adapters, with scales where those are not 1
          (`{"pirate": 0.5}`); None: those given to `load`; `{}`: the model as it is.
        * `draft_max`: tokens of one draft at most; 0: no drafts; None: as the model was loaded.
        * `show_special`: whether control tokens in the answer are part of its text.
        * `notify`: is called, on the engine's thread, when there is something to `poll`.
        * `sampling`: an `umbel.sampling.Settings`; or its fields one by one: `temperature`,
          `top_k`, `seed`, and what the answer must obey: `json_schema`, `regex`, `grammar` ...

        Raises `ContextFullError` when the prompt leaves no room, `SamplingError`,
        `OptionError`, `TokenizerError`; what fails later is raised to the reader.
        """
        session = self.open(adapters)
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
            do = "complete texts (`umbel run`, `generate`), or give a template"
            raise TemplateError(msg, where=self.file.path, do=do)
        text = chat.render(messages, tools, self.tokenizer.control, **options)
        return self.tokenizer.encode(text, special=True, eos=False)

    def logits(self, ids: Sequence[int], *, adapters: Wanted = None) -> np.ndarray:
        """The logits after each of the tokens: (n, n_vocab) float32."""
        with self.open(adapters) as session:
            return session.logits(ids)

    def hidden(self, prompt: Prompt, *, adapters: Wanted = None) -> np.ndarray:
        """What the layers make of each token of a text: (n, n_embd) float32.

        Of a decoder, the states that its output head reads: they have gone through the last
        norm.
        """
        texts, mix = self._texts([prompt]), self.mix(adapters)
        ((_, states),) = embedding.hidden(self.engine, texts, mix)
        return states

    def embed(
        self,
        texts: Sequence[Prompt] | str | bytes,
        *,
        pooling: str | None = None,
        normalize: bool = True,
        adapters: Wanted = None,
    ) -> np.ndarray:
        """A vector for each text, from the hidden states of its tokens: (n, n_embd) float32.

        * `texts`: texts or lists of token ids; a text by itself is one of one.
        * `pooling`: "mean" of all tokens, the first ("cls") or the "last" one; None: what the
          file says, else the mean in an encoder and the last token in a decoder.
        * `normalize`: makes each vector as long as 1.

        A text that does not fit is a `ContextFullError`: nothing is cut.
        """
        how = embedding.pooling(self.runner, pooling)
        given = [texts] if isinstance(texts, str | bytes | float | int | None) else texts
        vectors = embedding.embed(self.engine, self._texts(given), how, self.mix(adapters))
        return embedding.normalised(vectors) if normalize else vectors

    def _texts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """The ids of whole texts, each of which has some and fits."""
        made: list[list[int]] = []
        for number, prompt in enumerate(prompts, 1):
            given = self.tokenize(prompt) if isinstance(prompt, str | bytes) else prompt
            ids = self.tokenizer.check_ids(given if hasattr(given, "__iter__") else ())
            where = f"text {number}"
            if not ids:
                msg = "there is nothing to encode"
                raise OptionError(msg, where=where, expected="at least one token", got=prompt)
            self.runner.check_room(len(ids), where=where)
            made.append(ids)
        return made

    def open(self, adapters: Wanted = None) -> Session:
        """An empty session: one sequence that can be fed, forked, rewound and saved.

        It uses these adapters; None: those given to `load`.
        """
        if self.runner.encodes:
            msg = f"{self.runner.definition.architecture.name} is an encoder: it writes no text"
            raise OptionError(msg, where=self.file.path, do="use `Model.embed`")
        return Session(self, self.mix(adapters))

    def restore(self, path: str | os.PathLike[str], adapters: Wanted = None) -> Session:
        """The session that `Session.save` wrote; refused when it is another model's, or was
        computed with other adapters."""
        session, runner = self.open(adapters), self.runner
        mix, name = session._sequence.adapters, self.fingerprint
        given = (runner.cache, runner.states, name, self.tokenizer.n_vocab, mix)
        session._sequence = self.engine.call(lambda: store.load(path, *given))
        session._tokens = list(session._sequence.tokens)
        return session

    def close(self) -> None:
        """Stops everything that runs on the model and gives its memory back."""
        self.engine.close()
        _free(self.engine.runners)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Its thread would keep everything, and devices what they compiled, with the weights.
        self.engine.stop(partial(_free, self.engine.runners))


def _free(runners: Sequence[Runner]) -> None:
    for runner in runners:
        runner.close()
        runner.definition.file.close()
