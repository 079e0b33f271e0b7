"""A sweep of all-reduces: measured beside modelled, every codec beside BF16 on the same network."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire.harness.record.seal import check_done
from gradwire.harness.report.page import finished, page_markdown, page_text, write_page
from gradwire.harness.report.tables import Table, number
from gradwire.harness.studies.allreduce.summary import AllReduceSummary, Spread

FILE = "allreduce.json"
BASELINE = "bf16"

NOTES = (
    "Times in milliseconds: median (lowest–highest) over the rounds, of the slowest rank.",
    "Modelled: the simulated clock, codec work measured one rank at a time; a shaped network's links at the "
    "rate that one stream was found to carry before the run.",
    "Codec work, to BF16 and saved: of the times in the title. To BF16: over BF16's on the same network. "
    "By bits: the wire bits over BF16's, what the wire alone would give. Saved: BF16's time less this one.",
)


@dataclass(frozen=True)
class AllReduceComparison:
    """Finished runs in the order given, and a line for each that has no figures."""

    found: list[AllReduceSummary]
    left_out: list[str]

    @property
    def tables(self) -> list[Table]:
        by_subject: dict[str, list[AllReduceSummary]] = {}
        for one in self.found:
            by_subject.setdefault(_subject(one), []).append(one)
        return [_table(_title(found[0]), found) for found in by_subject.values()]

    @property
    def text(self) -> str:
        """For a terminal."""
        return page_text(self.tables, [*NOTES, *self.left_out], between="\n\n")

    @property
    def markdown(self) -> str:
        return page_markdown(self.tables, [*NOTES, *self.left_out])


def compare(folders: Sequence[Path], output: Path) -> AllReduceComparison:
    """Writes table.md, table.csv and table.json to `output`; ValueError when nothing is done."""
    done, left_out = finished(folders)
    for folder in done:
        check_done(folder)
    found = [AllReduceSummary.read(folder / FILE) for folder in done]
    comparison = AllReduceComparison(found, left_out)
    rows = [_row(one, found) for one in found]
    write_page(output, comparison.markdown, rows, left_out)
    with (output / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return comparison


def _subject(one: AllReduceSummary) -> str:
    """What two runs must share for their codecs to be comparable, including whether times were measured."""
    settings = " ".join(f"{key}={value}" for key, value in sorted(one.network_settings.items()))
    about = (one.topology, one.workers, one.coordinates, one.kernel_backend, one.measured is not None)
    return f"{about} {settings}"


def _title(one: AllReduceSummary) -> str:
    kind = "modelled" if one.measured is None else "measured"
    return f"{one.topology} of {one.workers}, {one.coordinates:,} coordinates, network {one.network}, {kind}"


def _baseline(one: AllReduceSummary, found: Sequence[AllReduceSummary]) -> AllReduceSummary | None:
    alike = [other for other in found if _subject(other) == _subject(one) and other.codec == BASELINE]
    same = [other for other in alike if other.pieces == one.pieces]
    return next(iter(same or alike), None)


def _row(one: AllReduceSummary, found: Sequence[AllReduceSummary]) -> dict[str, object]:
    """The figures of one run as columns, seconds and bits."""
    base, row = _baseline(one, found), {}
    if base is not None and base.wire_bits_per_coordinate and one.wire_bits_per_coordinate:
        by_bits = one.wire_bits_per_coordinate / base.wire_bits_per_coordinate
        to_base = one.seconds / base.seconds
        row = {"to_bf16": to_base, "by_bits": by_bits, "over_bits": to_base / by_bits}
        row["saved_s"] = base.seconds - one.seconds
    times = {
        f"{name}_{part}_s": None if spread is None else getattr(spread, part)
        for name, spread in (("measured", one.measured), ("modelled", one.modelled))
        for part in ("median", "low", "high")
    }
    return {
        "codec": one.codec,
        "topology": one.topology,
        "workers": one.workers,
        "coordinates": one.coordinates,
        "pieces": one.pieces,
        "network": one.network,
        "rate_mbit": one.rate_mbit,
        "goodput_mbit": one.goodput_mbit,
        "rivals": one.rivals,
        "wire_bits_per_coordinate": one.wire_bits_per_coordinate,
        **times,
        "measured_over_modelled": one.ratio,
        "measured_codec_s": None if one.measured_codec_s is None else one.measured_codec_s.median,
        "modelled_codec_s": one.modelled_codec_s.median,
        **{name: row.get(name) for name in ("to_bf16", "by_bits", "over_bits", "saved_s")},
    }


def _table(title: str, found: Sequence[AllReduceSummary]) -> Table:
    times = ["measured ms", "modelled ms", "measured / modelled", "codec work ms"]
    header = ["codec", "bits", *times, "to BF16", "by bits", "saved ms"]
    rows = []
    for one in found:
        row = _row(one, found)
        name = one.codec if one.pieces == 1 else f"{one.codec}, {one.pieces} segments"
        work = one.measured_codec_s or one.modelled_codec_s
        cells = [row["to_bf16"], row["by_bits"]]
        rows.append(
            [
                name,
                number(one.wire_bits_per_coordinate),
                _milliseconds(one.measured),
                _milliseconds(one.modelled),
                number(one.ratio, 3),
                number(1e3 * work.median, 3),
                *(number(cell if isinstance(cell, float) else None, 3) for cell in cells),
                number(None if row["saved_s"] is None else 1e3 * float(str(row["saved_s"])), 4),
            ]
        )
    return Table(title, header, rows)


def _milliseconds(spread: Spread | None) -> str:
    if spread is None:
        return number(None)
    middle, low, high = (number(1e3 * value, 4) for value in (spread.median, spread.low, spread.high))
    return f"{middle} ({low}–{high})"
