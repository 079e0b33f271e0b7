"""Runs the golden cases at another commit and with this working tree and compares all figures, bit for bit.

`python tests/compare_commits.py --base <commit>` checks that commit out into a temporary folder, runs every
case of `golden/cases.py` there and here as commands, and prints a line for each, with its differences. It
ends with code 1 if a case differs or fails. `--only dynamiq` chooses the cases whose name contains the word.
A commit that needs other kernels than are compiled here runs the definitions.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "golden"))

from cases import CASES
from commits import NoHistoryError, run_at
from records import differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    arguments = parser.parse_args()
    chosen = {name: case for name, case in CASES.items() if arguments.only in name}
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gradwire-compare-") as name:
        folders = [Path(name) / side for side in ("before", "after")]
        before = run_at(arguments.base, chosen, folders[0], as_virtual=False)
        after = run_at(None, chosen, folders[1], as_virtual=False)
        try:
            for (label, old), (_, new) in zip(before, after, strict=True):
                if isinstance(old, str) or isinstance(new, str):
                    found = [f"{label}: {error}" for error in (old, new) if isinstance(error, str)]
                else:
                    found = differences(label, old, new)
                failed += bool(found)
                print(f"{label:<30} {'differs' if found else 'same'}", *found, sep="\n  ", flush=True)
        except NoHistoryError as error:
            parser.error(str(error))
    print(f"{len(chosen) - failed} of {len(chosen)} cases are the same as at {arguments.base}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
