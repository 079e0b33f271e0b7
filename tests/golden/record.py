"""Records the golden cases anew: `make golden REASON="why they may change"`.

Runs every case with this working tree, whose sources must be committed, writes this machine's record, and
appends to `log.txt` the reason and every figure that is not what it was: on a machine without a record, at
the commit that the others name. `--at` records what another commit gives.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import torch
from cases import CASES, Case
from commanded import undrawn
from commits import PRODUCT, NoHistoryError, differs, git, run_at
from machine import this_machine
from pool import WorkerPool, Workers
from records import Record, all_differences, record_of, records, records_with_most, write_down
from runs import Figures, run_case


class FailedError(Exception):
    """A case did not run to its end; the text says why."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reason", required=True, help="why the figures may change; kept in log.txt")
    parser.add_argument("--at", help="a commit to run instead of this working tree, as commands")
    arguments = parser.parse_args()
    if not arguments.reason.strip():
        parser.error("--reason is empty: say why the figures may change")
    torch.set_num_threads(1)
    try:
        commit = git("rev-parse", "--verify", f"{arguments.at or 'HEAD'}^{{commit}}").decode().strip()
        if arguments.at is None and differs(commit, *PRODUCT):
            parser.error(f"what a run computes is not as in HEAD: commit {', '.join(PRODUCT)} first")
        before = known_before()
        after = run_here() if arguments.at is None else run_there(commit, CASES)
    except (NoHistoryError, FailedError) as error:
        parser.error(str(error))
    found = all_differences(before, after)
    record = Record(this_machine(), commit, after)
    if not found and record.path.exists():
        print("every figure is as recorded; nothing was written")
        return 0
    record.write()
    write_down(record, arguments.reason.strip(), found, datetime.now(UTC).date().isoformat())
    print(*found, sep="\n")
    print(f"recorded {len(after)} cases in {record.path}; commit it with log.txt")
    return 0


def known_before() -> Mapping[str, Figures]:
    """The cases' figures on this machine: as recorded, or from a run of the other records' commit."""
    own, others = record_of(this_machine()), records()
    if own is not None or not others:
        return {} if own is None else own.cases
    newest = records_with_most(others)
    print(f"no record of this machine: running the cases at {newest.commit}", flush=True)
    return run_there(newest.commit, {name: CASES[name] for name in newest.cases if name in CASES})


def run_here() -> dict[str, Figures]:
    """The figures of the cases with the sources of this process."""
    pool, found = WorkerPool(), {}
    try:
        with tempfile.TemporaryDirectory(prefix="gradwire-golden-") as folder, undrawn():
            for number, (name, case) in enumerate(CASES.items()):
                found[name] = run_case(case, Path(folder) / f"case{number}", Workers(pool))
    finally:
        pool.close()
    return found


def run_there(commit: str, cases: Mapping[str, Case]) -> dict[str, Figures]:
    """The figures of cases at a commit. Raises FailedError for one that it cannot run."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="gradwire-golden-") as folder:
        for name, figures in run_at(commit, cases, Path(folder), as_virtual=True):
            if isinstance(figures, str):
                raise FailedError(f"{name} at {commit}: {figures}")
            found[name] = figures
    return found


if __name__ == "__main__":
    sys.exit(main())
