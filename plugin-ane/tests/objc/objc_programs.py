"""Small programs, and a way to run one on any driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from umbel_ane.drivers import Driver, Model, Request
from umbel_ane.mil.blob import write_blob

SHAPE, NBYTES = (1, 64, 1, 32), 49152
PATH = "@model_path/weights/w.bin"
KIND = "tensor<fp16, [1, 64, 1, 32]>"


def scale(weights: float = 2.0) -> tuple[bytes, dict[str, bytes]]:
    """y = x * w - z; inputs and outputs are not declared in sorted order."""
    blob, offsets = write_blob([np.full(SHAPE, weights, np.float16)])
    at = f'BLOBFILE(path = string("{PATH}"), offset = uint64({offsets[0]}))'
    text = f"""program(1.3)
{{
    func main<ios18>({KIND} z, {KIND} x) {{
        {KIND} w = const()[name = string("w"), val = {KIND}({at})];
        {KIND} p = mul(x = x, y = w)[name = string("p")];
        {KIND} d = sub(x = p, y = z)[name = string("d")];
    }} -> (p, d);
}}
"""
    return text.encode(), {PATH: blob}


def made(driver: Driver, weights: float = 2.0) -> Model:
    return driver.model(driver.descriptor(*scale(weights)))


def ran(driver: Driver, model: Model, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One evaluation; surfaces are made for it, bound as the attributes say, and released."""
    order = model.attributes()
    names: Sequence[str] = (*order.inputs, *order.outputs)
    surfaces = {name: driver.surface(NBYTES) for name in names}
    n = int(np.prod(SHAPE)) * 2
    try:
        for name in order.inputs:
            with surfaces[name].lock() as memory:
                memory[:n] = given[name].astype(np.float16).reshape(-1).view(np.uint8)
        sides = [[surfaces[name] for name in side] for side in (order.inputs, order.outputs)]
        model.evaluate(Request(*sides))
        found = {}
        for name in order.outputs:
            with surfaces[name].lock(read_only=True) as memory:
                found[name] = memory[:n].view(np.float16).reshape(SHAPE).copy()
        return found
    finally:
        for surface in surfaces.values():
            surface.release()
