"""Weights of few bits: their form, how blocks of a file become it, and how they get there."""
