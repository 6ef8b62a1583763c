"""What a sequence leaves behind: KV cells and recurrent states, shared, rewound, saved."""

from __future__ import annotations

from umbel.state.cache import Cache, Sequence, Taken
from umbel.state.pool import Pool

__all__ = ["Cache", "Pool", "Sequence", "Taken"]
