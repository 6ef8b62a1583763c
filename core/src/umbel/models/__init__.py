"""Architectures: GGUF metadata to graph, one file each, all with one skeleton.

A file here has the architecture's name, and in it `build`; POOLED, where it is an encoder.
"""

from importlib import import_module
from pkgutil import iter_modules

from umbel.errors import UnsupportedModelError
from umbel.models.builder import Architecture, ModelDefinition, StateShape, StepShape

__all__ = ["Architecture", "ModelDefinition", "StateShape", "StepShape", "architecture"]

_SHARED = ("builder", "hparams", "layers")
# of architectures, and of the modules that build them
NAMES = sorted(m.name for m in iter_modules(__path__) if m.name not in _SHARED)


def architecture(name: str, *, where: object = None) -> Architecture:
    """The built-in architecture of that name; `UnsupportedModelError` lists those there are."""
    if name not in NAMES:
        msg, known = f"the architecture {name!r} is not supported", "one of " + ", ".join(NAMES)
        do = "`umbel inspect` shows the file; a plugin can add the architecture"
        raise UnsupportedModelError(msg, where=where, expected=known, got=name, do=do)
    module = import_module(f"umbel.models.{name}")
    return Architecture(name, module.build, getattr(module, "POOLED", False))
