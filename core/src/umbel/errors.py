"""The errors a user can meet: each says what, where, expected, got and what to do."""


class UmbelError(Exception):
    """Base of every error that Umbel raises on purpose.

    `what` is one plain sentence; the rest is optional and is printed a line each:

    >>> print(UmbelError("the key is missing", where="a.gguf", expected="llama.block_count"))
    the key is missing
      where: a.gguf
      expected: llama.block_count
    """

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        expected: object = None,
        got: object = None,
        do: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.got = got
        self.do = do

    def __str__(self) -> str:
        fields = ((name, getattr(self, name)) for name in ("where", "expected", "got", "do"))
        return "\n  ".join([self.what, *(f"{k}: {v}" for k, v in fields if v is not None)])


class ModelFormatError(UmbelError):
    """A file is not a GGUF file that can be trusted: truncated, malformed or contradictory."""


class UnsupportedModelError(UmbelError):
    """A well-formed file asks for an architecture, tensor type or feature that is not here."""


class TokenizerError(UmbelError):
    """A vocabulary cannot be used, or a text or token id does not belong to it."""


class TemplateError(UmbelError):
    """A chat template is broken, refuses the messages, or runs out of its bounds."""


class SamplingError(UmbelError):
    """A sampling setting is out of range, or the logits hold no token to choose."""


class OptionError(UmbelError):
    """An option or argument has a value that cannot be used."""


class ContextFullError(UmbelError):
    """The prompt does not fit into the context, or the context is full."""


class GraphError(UmbelError):
    """An operation was given inputs whose shapes or dtypes do not fit."""


class PluginError(UmbelError):
    """A plugin that was asked for by name cannot be loaded, or broke its contract."""


class DeviceError(UmbelError):
    """A device is missing, failed, or cannot run what it was told to run."""


class OutOfMemoryError(DeviceError):
    """A device or the host has no room for weights, state or a plan."""


class CancelledError(UmbelError):
    """A computation was stopped before its end; no state was changed."""
