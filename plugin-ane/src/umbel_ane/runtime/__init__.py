"""Running programs: surfaces and what fills them, loading with canaries, steps, updates."""
