"""The command `gradwire` from a checkout: `python run.py --help`.

Everything is imported inside the functions: the workers' processes import this file again.
"""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.realpath(__file__))


def main() -> None:
    """Finds the installed package and runs its command."""
    import signal

    handled = signal.getsignal(signal.SIGINT)
    if handled is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    if os.path.realpath(sys.path[0]) == ROOT:
        del sys.path[0]  # holds a folder `codecs`, which must never be found before Python's own module
    try:
        from gradwire.__main__ import main as command
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is not installed in {sys.executable}; run `make` and use its Python")
    signal.signal(signal.SIGINT, handled)
    command()


def _interrupted(number: int = 2, frame: object = None) -> None:
    """Ends the process while it imports, where an exception may turn into another error, or be lost."""
    os.write(2, b"error: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # while it imports what the handler needs
        _interrupted()
