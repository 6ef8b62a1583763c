"""The modules of the benchmark import each other as a script beside them would."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
