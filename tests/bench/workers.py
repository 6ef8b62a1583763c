"""One engine in a process of its own: it answers each line of JSON on stdin with another.

    python workers.py umbel DEVICE | llama.cpp WEIGHTS

DEVICE is one of Umbel's, or auto. WEIGHTS says where llama.cpp keeps its weights: "extra", the
extra buffer types of its choice; "plain", none; "repack", its repacking type and no other, for
machines on which the one that comes first (AMX) cannot be used.

Nothing is imported but the engine and NumPy, so that each can have its own Python. Umbel is
driven as `umbel bench` does it, llama.cpp by its C functions: what Python costs counts for one
and not for the other. Both choose tokens greedily, and every call returns its own seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

TEXT = "Hello"  # what the first token is asked for after
UBATCH = 512


class Umbel:
    """The engine under test, by way of its runner."""

    def __init__(self, device: str) -> None:
        import umbel
        from umbel.state import Sequence

        self.device, self.module, self.new = device, umbel, Sequence
        self.seconds = 0.0  # of the last `decode` that the backend had

    def load(self, path: str, threads: int, ctx: int, parallel: int, names: list[str]) -> str:
        self.model = self.module.load(
            path,
            self.device,
            ctx=ctx,
            parallel=parallel,
            ubatch=UBATCH,
            kv="f16",
            threads=threads,
        )
        self.model.open()  # refuses an encoder
        self.runner = self.model.runner
        vocabulary = self.runner.definition.hparams.n_vocab
        self.tokens = np.random.default_rng(0).integers(0, vocabulary, ctx).tolist()
        self.sequences = [self.new() for _ in range(parallel)]
        hooks = self.runner.targets[0].hooks
        hooks.graph_compute = self._watched(hooks.graph_compute)
        hooks.sync = self._watched(hooks.sync)
        return f"{self.module.__version__} on {', '.join(self.model.devices)}"

    def _watched(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """The same hook, whose seconds are added up: two looks at the clock more."""

        def call(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return hook(*args)
            finally:
                self.seconds += time.perf_counter() - began

        return call

    def prefill(self, n: int) -> float:
        return self.model.engine.call(lambda: self._prefill(n))

    def _prefill(self, n: int) -> float:
        sequence, began = self.new(), time.perf_counter()
        self.runner.forward(sequence, self.tokens[:n]).argmax()
        seconds = time.perf_counter() - began
        self.runner.cache.close(sequence)
        return seconds

    def decode(self, n: int, depth: int, sequences: int) -> float:
        return self.model.engine.call(lambda: self._decode(n, depth, sequences))

    def _decode(self, n: int, depth: int, sequences: int) -> float:
        some = self.sequences[:sequences]
        for sequence in some:
            if left := self.tokens[len(sequence) : depth]:
                self.runner.forward(sequence, left)
        tokens = [self.tokens[0]] * sequences
        self.seconds, began = 0.0, time.perf_counter()
        for _ in range(n):
            tokens = self.runner.decode(some, tokens).argmax(-1).tolist()
        seconds = time.perf_counter() - began
        for sequence in some:
            self.runner.cache.rewind(sequence, depth)
        return seconds

    def inside(self) -> float:
        """Seconds of the last `decode` that were spent in the backend's hooks."""
        return self.seconds


class LlamaCpp:
    """The rival, by the low-level side of llama-cpp-python."""

    def __init__(self, weights: str) -> None:
        self.version = str(import_module("llama_cpp").__version__)
        self.low: Any = import_module("llama_cpp.llama_cpp")
        self.weights = weights
        self._silence = self.low.llama_log_callback(lambda *_: None)
        self.low.llama_log_set(self._silence, None)
        self.low.llama_backend_init()

    def load(self, path: str, threads: int, ctx: int, parallel: int, names: list[str]) -> str:
        low, settings = self.low, self.low.llama_model_default_params()
        settings.use_extra_bufts = self.weights == "extra"
        if self.weights == "repack":
            self._overrides = _repacked(low, names)
            settings.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)
        self.model = low.llama_model_load_from_file(path.encode(), settings)
        if not self.model:
            msg = f"llama.cpp cannot load {path}"
            raise RuntimeError(msg)
        self.vocabulary = low.llama_vocab_n_tokens(low.llama_model_get_vocab(self.model))
        # the most tokens of a sequence, as it rounds them
        self.room = {"n_ctx": -(-ctx // 256) * 256 * parallel, "n_seq_max": parallel}
        self.room |= {"n_threads": threads, "n_threads_batch": threads}
        self.tokens = np.random.default_rng(0).integers(0, self.vocabulary, ctx).tolist()
        self.batch = low.llama_batch_init(UBATCH, 0, 1)
        self.contexts: dict[bool, tuple[Any, list[int]]] = {}
        return self.version

    def _context(self, flash: bool) -> tuple[Any, list[int]]:
        """One with flash attention or one without; and how long its sequences are."""
        if flash not in self.contexts:
            settings = self.low.llama_context_default_params()
            for name, value in self.room.items():
                setattr(settings, name, value)
            settings.n_batch = settings.n_ubatch = UBATCH
            settings.type_k = settings.type_v = 1  # GGML_TYPE_F16
            settings.flash_attn_type = int(flash)
            context = self.low.llama_init_from_model(self.model, settings)
            if not context:
                msg = "llama.cpp cannot make a context"
                raise RuntimeError(msg)
            self.contexts[flash] = context, [0] * self.room["n_seq_max"]
        return self.contexts[flash]

    def _run(self, context: Any, rows: list[tuple[int, int, int]], wanted: int) -> None:
        """Rows of token, position and sequence; logits of the last ones are wanted."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = i >= len(rows) - wanted
        if self.low.llama_decode(context, batch):
            msg = "llama.cpp cannot decode"
            raise RuntimeError(msg)

    def _best(self, context: Any, row: int) -> int:
        logits = self.low.llama_get_logits_ith(context, row)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def _feed(self, context: Any, sequence: int, begin: int, end: int) -> None:
        for at in range(begin, end, UBATCH):
            piece = range(at, min(at + UBATCH, end))
            self._run(context, [(self.tokens[i], i, sequence) for i in piece], 1)

    def prefill(self, n: int, flash: bool) -> float:
        context, lengths = self._context(flash)
        self._cut(context, lengths, 0)
        began = time.perf_counter()
        self._feed(context, 0, 0, n)
        self._best(context, -1)
        seconds = time.perf_counter() - began
        self._cut(context, lengths, 0)
        return seconds

    def decode(self, n: int, depth: int, sequences: int, flash: bool) -> float:
        context, lengths = self._context(flash)
        for sequence in range(sequences):
            self._feed(context, sequence, lengths[sequence], depth)
            lengths[sequence] = depth
        self.low.llama_synchronize(context)
        tokens = [self.tokens[0]] * sequences
        began = time.perf_counter()
        for at in range(depth, depth + n):
            self._run(context, [(t, at, s) for s, t in enumerate(tokens)], sequences)
            tokens = [self._best(context, row) for row in range(sequences)]
        seconds = time.perf_counter() - began
        self._cut(context, lengths, depth)
        return seconds

    def _cut(self, context: Any, lengths: list[int], length: int) -> None:
        memory = self.low.llama_get_memory(context)
        for sequence in range(len(lengths)):
            self.low.llama_memory_seq_rm(memory, sequence, length, -1)
            lengths[sequence] = min(lengths[sequence], length)

    def first(self, path: str, threads: int, names: list[str]) -> None:
        """Writes the first token after a text, as a command would."""
        self.load(path, threads, 4096, 1, names)
        low, vocab = self.low, self.low.llama_model_get_vocab(self.model)
        ids, text = (ctypes.c_int32 * 64)(), ctypes.create_string_buffer(64)
        n = low.llama_tokenize(vocab, TEXT.encode(), len(TEXT), ids, 64, True, False)
        self.tokens[:n] = ids[:n]
        context, _ = self._context(True)
        self._feed(context, 0, 0, n)
        size = low.llama_token_to_piece(vocab, self._best(context, -1), text, 64, 0, False)
        print(text.raw[:size].decode(errors="replace"), flush=True)


class _Override(ctypes.Structure):
    """`llama_model_tensor_buft_override`: tensors of such names go to this buffer type."""

    _fields_ = (("pattern", ctypes.c_char_p), ("kind", ctypes.c_void_p))


def _repacked(low: Any, names: list[str]) -> Any:
    """The list that puts tensors into the repacking buffer type."""
    kinds = dict(_extra_buffers(low))
    if not names or "CPU_REPACK" not in kinds:
        msg = f"nothing to repack: {len(names)} tensors, buffer types {', '.join(kinds)}"
        raise RuntimeError(msg)
    escaped = "|".join(name.replace(".", r"\.") for name in names)
    first = _Override(f"^({escaped})$".encode(), kinds["CPU_REPACK"])
    return (_Override * 2)(first, _Override(None, None))


def _extra_buffers(low: Any) -> Iterator[tuple[str, int]]:
    """The extra buffer types of llama.cpp's CPU device, the best first: name and address."""
    pointer = ctypes.c_void_p
    lib = low._lib  # symbols of the libraries that it needs are found by way of it
    lib.ggml_backend_cpu_reg.restype = pointer
    lib.ggml_backend_reg_get_proc_address.restype = pointer
    lib.ggml_backend_reg_dev_get.restype = pointer
    lib.ggml_backend_buft_name.restype = ctypes.c_char_p
    registry = pointer(lib.ggml_backend_cpu_reg())
    name = b"ggml_backend_dev_get_extra_bufts"
    address = lib.ggml_backend_reg_get_proc_address(registry, name)
    device = lib.ggml_backend_reg_dev_get(registry, ctypes.c_size_t(0))
    kinds = ctypes.CFUNCTYPE(ctypes.POINTER(pointer), pointer)(address)(device)
    for kind in iter(kinds):
        if not kind:
            return
        yield lib.ggml_backend_buft_name(pointer(kind)).decode(), kind


ENGINES: dict[str, Any] = {"umbel": Umbel, "llama.cpp": LlamaCpp}


def peak_memory() -> int:
    """Bytes of this process at its largest, with the pages of mapped files."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def first(arguments: list[str]) -> None:
    """llama.cpp's first token; stderr gets the seconds from here, where all is imported."""
    weights, path, threads, *names = arguments
    engine = LlamaCpp(weights)
    began = time.perf_counter()
    engine.first(path, int(threads), names)
    print(time.perf_counter() - began, file=sys.stderr, flush=True)
    os._exit(0)  # tidying up is not what is measured


def main() -> None:
    kind, setting, *arguments = sys.argv[1:]
    if kind == "first":
        first([setting, *arguments])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    engine: Any = None
    for line in sys.stdin:
        call, *args = json.loads(line)
        try:
            engine = engine or ENGINES[kind](setting)
            if call == "start":
                answer: Any = None
            elif call == "peak_memory":
                answer = peak_memory()
            else:
                answer = getattr(engine, call)(*args)
            told = {"answer": answer}
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
