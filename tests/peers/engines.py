"""One engine in a process of its own: it answers each line of JSON on stdin with another.

    python engines.py umbel|transformers|llama.cpp

Nothing is imported but the engine, so that each can have its own Python. All compute with
float32 activations and a float32 KV cache where they let one choose.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CACHES = ("cache", "cache_params", "past_key_values")  # as models of transformers call it
Timed = tuple[list[int], float, float]  # tokens, seconds to the first, seconds for the others


class Umbel:
    """The host backend."""

    def __init__(self) -> None:
        import umbel

        self.module, self.version = umbel, umbel.__version__

    def load(self, path: str, threads: int, whole: bool) -> None:
        options = {"host": {"threads": threads}}
        self.model = self.module.load(path, "host", options=options)

    def tokenize(self, text: str) -> list[int]:
        return self.model.tokenize(text)

    def logits(self, ids: list[int]) -> np.ndarray:
        return self.model.logits(ids)

    def greedy(self, ids: list[int], n: int) -> Timed:
        answer = self.model.generate(ids, max_tokens=n, temperature=0.0)
        answer.read()
        return answer.tokens, answer.prefill_seconds, answer.decode_seconds


class Transformers:
    """PyTorch in float32; the file's weights are dequantised at load."""

    def __init__(self) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        self.torch, self.module = torch, transformers
        self.version = f"{transformers.__version__} (torch {torch.__version__})"

    def load(self, path: str, threads: int, whole: bool) -> None:
        self.torch.set_num_threads(threads)
        file = Path(path)
        self.model = self.module.AutoModelForCausalLM.from_pretrained(
            str(file.parent), gguf_file=file.name, dtype=self.torch.float32
        ).eval()

    def logits(self, ids: list[int]) -> np.ndarray:
        with self.torch.inference_mode():
            return self.model(self.torch.tensor([ids])).logits[0].numpy()

    def greedy(self, ids: list[int], n: int) -> Timed:
        began, tokens, past, first = time.perf_counter(), list[int](), {}, 0.0
        with self.torch.inference_mode():
            for _ in range(n):
                given = self.torch.tensor([tokens[-1:] or ids])
                out = self.model(given, use_cache=True, logits_to_keep=1, **past)
                past = {name: out[name] for name in CACHES if name in out}
                tokens.append(int(out.logits[0, -1].argmax()))
                first = first or time.perf_counter() - began
        return tokens, first, time.perf_counter() - began - first


class LlamaCpp:
    """llama.cpp, by the low-level side of llama-cpp-python."""

    def __init__(self) -> None:
        import llama_cpp

        self.module, self.version = llama_cpp, llama_cpp.__version__

    def load(self, path: str, threads: int, whole: bool) -> None:
        # With its extra buffers for weights (AMX kernels among them) the process ended with an
        # illegal instruction on a virtual machine.
        low, defaults = self.module.llama_cpp, self.module.llama_model_default_params
        settings = defaults()
        settings.use_extra_bufts = False
        low.llama_model_default_params = lambda: settings
        self.model = self.module.Llama(
            path,
            n_ctx=512,
            n_threads=threads,
            n_threads_batch=threads,
            type_k=self.module.GGML_TYPE_F32,
            type_v=self.module.GGML_TYPE_F32,
            logits_all=whole,
            verbose=False,
        )

    def logits(self, ids: list[int]) -> np.ndarray:
        self.model.reset()
        self.model.eval(ids)
        return np.array(self.model.scores[: len(ids)])

    def greedy(self, ids: list[int], n: int) -> Timed:
        self.model.reset()
        began, tokens, first = time.perf_counter(), list[int](), 0.0
        for token in self.model.generate(ids, temp=0.0, repeat_penalty=1.0):
            tokens.append(token)
            first = first or time.perf_counter() - began
            if len(tokens) == n:
                break
        return tokens, first, time.perf_counter() - began - first


ENGINES = {"umbel": Umbel, "transformers": Transformers, "llama.cpp": LlamaCpp}


def peak_memory() -> int:
    """Bytes of this process at its largest, with the pages of mapped files."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    engine: Any = None
    for line in sys.stdin:
        call, *args = json.loads(line)
        try:
            if engine is None:
                engine = ENGINES[sys.argv[1]]()
            began = time.perf_counter()
            answer = peak_memory() if call == "peak_memory" else getattr(engine, call)
            if callable(answer):
                answer = answer(*args)
            if isinstance(answer, np.ndarray):
                np.save("logits.npy", answer)
                answer = None
            told = {"answer": answer, "seconds": time.perf_counter() - began}
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
