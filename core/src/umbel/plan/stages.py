"""Which device is preferred for which layer, where several were named or not all layers fit."""

import bisect
import itertools
import re
from collections.abc import Sequence

from umbel.errors import OptionError
from umbel.graph import Tensor
from umbel.plan.memory import Target

SPLITS = ("layer", "row")
_LAYER = re.compile(r"\.(\d+)(?:\.|$)")


def named_first(targets: Sequence[Target]) -> list[Target]:
    """The devices of one backend that were named first; the last target is not among them."""
    backend = targets[0].device.backend
    return list(itertools.takewhile(lambda t: t.device.backend == backend, targets[:-1]))


def stages(
    targets: Sequence[Target], layers: int, split: str, offload: int | None
) -> list[Target]:
    """The preferred device of each layer; none, where all are for the first device.

    The last `offload` layers are for the devices named first, the others for the next one. With
    `split` "layer", or where some go elsewhere, the named ones share them by their free memory.
    """
    if split not in SPLITS:
        msg = "several devices cannot be used like that"
        raise OptionError(msg, where="split", expected=" or ".join(SPLITS), got=split)
    devices = named_first(targets)
    if not devices or (offload is None and (len(devices) == 1 or split != "layer")):
        return []
    elsewhere = max(layers - offload, 0) if offload is not None else 0
    free = [t.info.memory_free for t in devices]
    shares = list(itertools.accumulate(free if all(free) else [1] * len(free)))
    n = layers - elsewhere
    places = ((i + 0.5) / n * shares[-1] for i in range(n))
    owners = [devices[bisect.bisect_right(shares, at)] for at in places]
    return [targets[len(devices)]] * elsewhere + owners


def layer_of(t: Tensor) -> int:
    """The layer that a weight or state is of, by its name ("blk.3.attn_q.weight"); else -1."""
    found = _LAYER.search(t.name)
    return int(found[1]) if found else -1
