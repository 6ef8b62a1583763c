"""What devices tell of themselves, asked at most once a second and never for long."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from umbel import plugins
from umbel.hookspecs import Device

FRESH_SECONDS = 1.0
ASK_SECONDS = 2.0


@attrs.define(eq=False)
class Devices:
    """All that there are; those that a model is on are open."""

    _told: list[dict[str, Any]] = attrs.field(factory=list)
    _at: float = -FRESH_SECONDS

    def told(self) -> list[dict[str, Any]]:
        """Name, description, whether it is simulated, and its status: on any thread."""
        now = time.monotonic()
        if now - self._at >= FRESH_SECONDS:
            found = plugins.get()
            self._told = [_one(found, device) for device in found.devices()]
            self._at = now
        return self._told

    def of_backend(self, name: str) -> Sequence[dict[str, Any]]:
        return [one for one in self.told() if one["name"].partition(":")[0] == name]


def _one(found: plugins.Plugins, device: Device) -> dict[str, Any]:
    backend = found.backends.get(device.backend)
    status: Mapping[str, object] = {}
    if backend is not None:
        try:
            status = backend.status(device) or {}
        except Exception as error:
            status = {"error": str(error)}
    plain = {str(k): v if isinstance(v, int | float) else str(v) for k, v in status.items()}
    return {
        "name": device.name,
        "description": device.description,
        "simulated": device.simulated,
        "status": plain,
    }
