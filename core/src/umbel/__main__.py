"""`python -m umbel` is `umbel`."""

from umbel.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
