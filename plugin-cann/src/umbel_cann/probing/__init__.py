"""What a chip can do, by trying it.

The vendor's tables are wrong both ways. So every operator that a lowering uses is tried once on
tiny tensors, with each dtype, and its numbers are compared with NumPy's. Some calls crash, and
some that fail leave others failing: they are made in a process of their own, by `child.py`,
which is started and heard by `parent.py`. What came of it is kept by `cache.py`.

    cases.py, maker.py, special.py   what is tried
    trial.py                         one of these on a device
"""

from umbel_cann.probing.cache import Tried, known, tried

__all__ = ["Tried", "known", "tried"]
