"""From a split of the core's graph to programs: lowering, passes, cutting, MIL text."""
