"""The command `gradwire` from a checkout: `python run.py --help`.

Everything is imported inside the functions: the workers' processes import this file again.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def main() -> None:
    """Finds the installed package and runs its command."""
    if Path(sys.path[0]).resolve() == ROOT:
        del sys.path[0]  # holds a folder `codecs`, which must never be found before Python's own module
    try:
        from gradwire.__main__ import main as command
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is not installed in {sys.executable}; run `make` and use its Python")
    except KeyboardInterrupt:  # the imports take seconds
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
