"""MIL, the language of Apple's compilers: programs as data, their text, and weight files."""
