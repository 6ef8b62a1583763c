"""Small programs that find out what a Neural Engine takes and does, for `umbel ane report`.

    bench.py       builds programs, runs them on any driver, counts compiles
    compiles.py    what the compiler takes
    runs.py        what programs do: order and size of surfaces, weights, numbers, time

Nothing here does what is known to take the process with it, or to spoil what runs after it.
"""
