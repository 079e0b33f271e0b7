"""The command `gradwire`, which is also `python -m gradwire` and `run.py`: `gradwire --help`.

Everything is imported inside the function: the workers' processes import this file again.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Finds Hydra's plug-in for sweeps, then composes, checks and runs what the command line says."""
    package = Path(__file__).resolve().parent
    if sys.path and (Path(sys.path[0]) / "gradwire").resolve() == package:
        # `python -m gradwire` in a checkout, whose folder `codecs` must never be found before Python's own.
        del sys.path[0]
    sys.path.append(str(package / "harness" / "sweeper"))
    try:
        try:
            from gradwire.harness.runtime.interrupts import end_on_interrupt

            end_on_interrupt()
            from gradwire.harness.tasks.front import start
        except ModuleNotFoundError as error:
            sys.exit(f"error: {error}")
        start()
    except KeyboardInterrupt as interrupt:  # while it imports, or where no other handler is installed
        print(f"error: {str(interrupt) or 'interrupted'}", file=sys.stderr, flush=True)
        sys.exit(128 + getattr(interrupt, "number", 2))


if __name__ == "__main__":
    main()
