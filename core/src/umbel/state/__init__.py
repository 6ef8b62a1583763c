"""What a sequence leaves behind: KV cells and recurrent states, shared, rewound, saved."""

from umbel.state.cache import Cache, Mix, Sequence, Taken

__all__ = ["Cache", "Mix", "Sequence", "Taken"]
