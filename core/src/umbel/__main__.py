"""`python -m umbel` is `umbel`."""

from __future__ import annotations

import sys

from umbel.cli import main

if __name__ == "__main__":
    sys.exit(main())
