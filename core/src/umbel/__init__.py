"""Umbel: language models (GGUF files) as one graph on many backends.

>>> import umbel
>>> with umbel.load("model.gguf") as model:
...     for piece in model.generate("Once upon a time", max_tokens=32):
...         print(piece, end="")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from umbel.generation import Generation
    from umbel.model import Model
    from umbel.opening import load
    from umbel.session import Session

__version__ = "0.1.0"
__all__ = ["Generation", "Model", "Session", "__version__", "load"]

_HOMES = {"Generation": "generation", "Model": "model", "Session": "session", "load": "opening"}


def __getattr__(name: str) -> object:
    """Imports the engine when it is first asked for, so that `import umbel` stays cheap."""
    if name not in _HOMES:
        msg = f"module 'umbel' has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    return getattr(import_module(f"umbel.{_HOMES[name]}"), name)
