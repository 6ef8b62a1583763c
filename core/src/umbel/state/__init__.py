"""What a sequence leaves behind: KV cells and recurrent states, shared, rewound, saved."""

from umbel.state.cache import Cache, Sequence, Taken

__all__ = ["Cache", "Sequence", "Taken"]
