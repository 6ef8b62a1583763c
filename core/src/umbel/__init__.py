"""Umbel: language models (GGUF files) as one graph on many backends."""

from __future__ import annotations

__version__ = "0.1.0"
