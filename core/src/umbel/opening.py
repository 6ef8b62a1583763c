"""`umbel.load`: from the name of a file, and how it is to run, to a `Model`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from umbel import gguf, loading
from umbel.adapters import Wanted, read_all, room
from umbel.draft import LONGEST, LOOKUP, DraftModel, Lookup, Proposer, check_vocabulary
from umbel.engine import Engine
from umbel.errors import DeviceError, OptionError
from umbel.extras.locate import find_model
from umbel.gguf import types
from umbel.model import Model
from umbel.plan.memory import Progress
from umbel.runner import Runner, Settings
from umbel.text import Tokenizer, load_tokenizer


def load(
    path: str | os.PathLike[str],
    device: str = "auto",
    *,
    prefill_device: str | None = None,
    ctx: int | None = None,
    parallel: int = 1,
    ubatch: int = 512,
    kv: str = "auto",
    split: str = "layer",
    offload_layers: int | None = None,
    threads: int | None = None,
    options: Mapping[str, Mapping[str, object]] | None = None,
    adapters: Wanted = None,
    adapter_slots: int = 0,
    adapter_rank: int = 0,
    strict: bool = False,
    check: bool = False,
    check_tensors: bool = False,
    draft: str | os.PathLike[str] | None = None,
    draft_max: int = LONGEST,
    progress: Progress | None = None,
) -> Model:
    """Opens a GGUF file and makes it ready to run.

    * `path`: a file, a folder with one model, a hub name (`owner/repo:file`), or "demo".
    * `device`: "auto" (the best real one), or names as `umbel devices` lists them, separated
      by commas; what the first cannot run goes to the next, and in the end to the host.
    * `prefill_device`: computes prompts, where that is another than `device`, which has to be
      able to read its memory: the keys and values stay where they are.
    * `ctx`: tokens of one sequence at most; None: what the model was trained for, up to 4096.
    * `parallel`: how many sequences can be that long at once.
    * `ubatch`: tokens of one step of prefill at most.
    * `kv`: how keys and values are kept: "f32", "f16", "q8_0", or "auto": as the device does on
      which attention runs.
    * `split`: what several devices of one backend, named first, share: "layer", whole layers
      by their free memory, or "row", the rows of each large matrix.
    * `offload_layers`: only the last so many layers go to the devices named first, the others
      to the next one, in the end the host; None: all.
    * `threads`: for backends that take it; None or 0: as they choose.
    * `options`: of backends, as `-O` gives them: `{"host": {"dequantise": "blocks"}}`.
    * `adapters`: LoRA adapters (GGUF): a path, several, or paths with scales. Requests that do
      not say otherwise use them all; each is called by its file's name without the ending.
    * `adapter_slots`, `adapter_rank`: room for so many adapters of so high a rank, to be loaded
      later; 0: for those that are given.
    * `strict`: a plugin that failed, a fallback to another device and a weight converted at
      load are errors.
    * `check`: computes node by node and names the one that fails or is not finite (slow).
    * `check_tensors`: looks for values that are not finite in all weights first.
    * `draft`: guesses the next tokens, which are checked in one step: "lookup" (from the text
      so far), or the file of a smaller model with the same vocabulary. No text changes.
    * `draft_max`: tokens of one draft at most.
    * `progress`: is called with the bytes that are loaded and those of all weights.

    Raises `ModelFormatError`, `UnsupportedModelError`, `DeviceError`, `OptionError`. What is
    not as one would expect is told on the logger "umbel".
    """
    file = gguf.open(find_model(os.fspath(path)))
    try:
        definition = loading.define(file)
        loras = read_all(definition, adapters)
        adapter_slots = loading.number("adapter_slots", adapter_slots, 0)
        adapter_rank = loading.number("adapter_rank", adapter_rank, 0)
        threads = loading.number("threads", threads or 0, 0)
        draft_max = loading.number("draft_max", draft_max, 0)
        if offload_layers is not None:
            loading.number("offload_layers", offload_layers, 0)
        opened = partial(loading.targets, options=options, threads=threads, strict=strict)
        prefill = opened(prefill_device) if prefill_device else []
        devices = opened(device)
        settings = Settings(
            ctx=loading.context(definition, ctx, prefill + devices),
            parallel=loading.number("parallel", parallel, 1),
            ubatch=loading.number("ubatch", ubatch, 1),
            kv=loading.kv_dtype(definition, kv),
            split=split,
            offload=offload_layers,
            adapters=room(definition, loras, adapter_slots, adapter_rank),
            check=check,
            strict=strict,
        )
        tokenizer = load_tokenizer(file.metadata, where=str(file.path))
        definition.check_vocabulary(tokenizer.n_vocab)
        if check_tensors:
            for name, info in file.tensors.items():
                types.check(name, file.array(name), info.dtype, file.path)
        runner = Runner(definition, devices, settings, progress, prefill)
        try:
            for adapter in loras:
                runner.adapters.put(adapter)
            loading.report(runner)
            more = {"options": options, "threads": threads, "strict": strict, "check": check}
            where: dict[str, Any] = {"device": device, "ubatch": ubatch, "progress": progress}
            proposer = _proposer(draft, tokenizer, runner, **where, **more)
        except BaseException:
            runner.close()
            raise
    except BaseException as error:
        file.close()
        if isinstance(error, DeviceError):  # or its frames keep the memory that is wanted back
            raise error.with_traceback(None) from error.__cause__
        raise
    scales = {lora.name: scale for lora, scale in loras.items()}
    engine = Engine(runner, proposer, draft_max if proposer else 0)
    return Model(file, tokenizer, engine, scales)


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
