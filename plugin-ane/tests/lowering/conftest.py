"""Lowering is judged by what the IR's graph computes, on ports filled as the runtime does."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # what tests share stands beside them
