"""Sizes of the sweeps that show a paper that have not run: those above the sizes of their records.

It is found from the sweeps' files and the records, so that no page says by hand what has run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gradwire.harness.report.claims.claim import rank
from gradwire.harness.report.claims.known_sweeps import Known, KnownSweep, Planned
from gradwire.harness.report.sweep_record import SweepRecord

TRAIN, TINY = "train", "tiny"


def not_run(
    sweeps: Iterable[str], known: Known, records: Mapping[str, Sequence[SweepRecord]]
) -> list[tuple[str, str]]:
    """(what, why) of the sizes above the largest recorded one; sweeps that lack the same sizes of the same
    models share a line.

    Sweeps without any record are left out: what they would show says so itself.
    """
    found: dict[tuple[tuple[str, tuple[str, ...]], ...], list[str]] = {}
    for sweep in dict.fromkeys(sweeps):
        sizes = [record.size for record in records.get(sweep, ())]
        if sizes and sweep in known:
            open_ = tuple((size, planned.models) for size, planned in _larger(known[sweep], sizes))
            found.setdefault(open_, []).append(sweep)
    return [_in_words(names, open_) for open_, names in found.items() if open_]


def _larger(sweep: KnownSweep, recorded: Sequence[str]) -> Iterator[tuple[str, Planned]]:
    """The sizes above the largest recorded one, but for those that run the same cells without training."""
    largest = max(recorded, key=rank)
    done = sweep.sizes.get(largest)
    for size in sorted(sweep.sizes, key=rank):
        planned = sweep.sizes[size]
        repeats = done is not None and planned.cells == done.cells and planned.task != TRAIN
        if rank(size) > rank(largest) and size != TINY and not repeats:
            yield size, planned


def _in_words(sweeps: Sequence[str], sizes: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[str, str]:
    what = f"{', '.join(sweeps)} at {' and '.join(f'size={size}' for size, _ in sizes)}"
    models = ", ".join(dict.fromkeys(model for _, names in sizes for model in names))
    return what, f"not run: no record{f' of {models}' if models else ''}"
