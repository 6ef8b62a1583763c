"""Refuses what cannot fit into a device's memory, before any of it is taken."""

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from umbel.errors import OutOfMemoryError
from umbel.graph import Role, Tensor
from umbel.plan.memory import Target
from umbel.plan.stages import layer_of

log = logging.getLogger("umbel")


def check(target: Target, tensors: Sequence[Tensor]) -> None:
    """Weights or states without memory yet, against what is free now, if that is known."""
    told = target.hooks.status(target.device).get("memory_free")
    free = told if isinstance(told, int) else target.info.memory_free
    layers: Counter[int] = Counter()
    for tensor in tensors:
        layers[layer_of(tensor)] += target.buffer_type.alloc_size(tensor)
    if 0 < free < (need := layers.total()):
        expected = f"at most {free} bytes: {need - free} are missing"
        if tensors[0].role is Role.WEIGHT:  # the last layers are those to be kept
            room = free - layers.pop(-1, 0)
            fit = sum(n <= room for n in accumulate(layers[i] for i in sorted(layers)[::-1]))
            msg = f"the model does not fit into the memory of {target.name}"
            do = f"take a smaller model, or --offload-layers {fit}"
        else:
            msg = f"the context does not fit into the memory of {target.name}"
            do = "take a smaller ctx or parallel, or kv q8_0"
            if target.info.grows:
                log.warning("all of %s: it ends where the memory does (%s)", msg, expected)
                return
        raise OutOfMemoryError(msg, expected=expected, got=need, do=do)
