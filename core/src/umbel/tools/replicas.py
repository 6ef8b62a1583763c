"""One model on several devices, whole on each: sequences are dealt over them, one for each.

A sequence stays where it began, with its state. Devices compute at the same time, each on the
thread of its own engine; with `split`, in contrast, they share the work of every token.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np

from umbel.errors import OptionError
from umbel.generation import Generation
from umbel.model import Model
from umbel.opening import load
from umbel.session import Prompt, Session


class Replicas(AbstractContextManager["Replicas"]):
    """Models that are all the same, for any number of threads.

    `models`: one or more, which are closed with this.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        if not models:
            msg = "there is nothing to deal sequences over"
            raise OptionError(msg, where="replicas", expected="at least one device", got=0)
        self.models = tuple(models)
        self._turn = 0  # whose it is, of those that are equally free
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], devices: Sequence[str], **settings: Any
    ) -> Replicas:
        """Loads a file once for each of `devices`: names as `umbel.load` takes them, so that
        each can be several. Memory is taken for each; the other settings are those of
        `umbel.load`, and `parallel` counts for each.

        Raises what `umbel.load` raises, with nothing left loaded.
        """
        with ExitStack() as opened:
            models = [opened.enter_context(load(path, each, **settings)) for each in devices]
            replicas = cls(models)
            opened.pop_all()
        return replicas

    def next(self) -> Model:
        """Where the next sequence goes: to the one with the fewest jobs, then in turn."""
        with self._lock:
            n = len(self.models)
            order = [self.models[(self._turn + i) % n] for i in range(n)]
            chosen = min(order, key=lambda m: m.engine.jobs)
            self._turn = self.models.index(chosen) + 1
            return chosen

    def generate(self, prompt: Prompt, **settings: Any) -> Generation:
        """`Model.generate`, on the next one."""
        return self.next().generate(prompt, **settings)

    def chat(self, messages: Sequence[Mapping[str, Any]], **settings: Any) -> Generation:
        """`Model.chat`, on the next one."""
        return self.next().chat(messages, **settings)

    def embed(self, texts: Sequence[Prompt] | str | bytes, **settings: Any) -> np.ndarray:
        """`Model.embed`, on the next one."""
        return self.next().embed(texts, **settings)

    def open(self) -> Session:
        """`Model.open`, on the next one."""
        return self.next().open()

    def close(self) -> None:
        """Closes them all."""
        with ExitStack() as every:
            for model in self.models:
                every.callback(model.close)

    def __exit__(self, *_: object) -> None:
        self.close()
