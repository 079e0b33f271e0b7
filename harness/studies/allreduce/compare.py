"""A sweep of all-reduces: measured beside modelled, every codec beside BF16 on the same network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.harness.report.frame import frame, spreads
from gradwire.harness.report.tables import Column, Line, Page, figures_table, finished
from gradwire.harness.studies.allreduce.summary import AllReduceSummary

FILE = "allreduce.json"
BASELINE = "bf16"

NOTES = (
    "Times: median (lowest–highest) over the rounds, of the slowest rank.",
    "Modelled: the simulated clock, codec work measured one rank at a time; a shaped network's links at the "
    "rate that one stream was found to carry before the run.",
    "Bus bandwidth: bytes of the float32 vector over the time, times 2(n − 1)/n, whatever the codec sends; a "
    "codec of b bits can reach 32/b times what the links carry.",
    "Bus bandwidth, codec work, to BF16 and saved: of the times in the title. To BF16: over BF16's on the "
    "same network. By bits: the wire bits over BF16's, what the wire alone would give. Saved: BF16's time "
    "less this one.",
)

FIGURES = {
    "wire_bits_per_coordinate": ("wire_bits_per_coordinate", "measured"),
    "measured": ("allreduce_s", "measured"),
    "modelled": ("allreduce_s", "modelled"),
    "measured_codec_s": ("codec_s", "measured"),
    "modelled_codec_s": ("codec_s", "modelled"),
}
"""A run's values in the results frame, by metric and kind; emulated times count as measured."""

COLUMNS = (
    "wire_bits_per_coordinate",
    Column("allreduce_s", "measured", "measured"),
    Column("allreduce_s", "modelled", "modelled"),
    *("measured_over_modelled", "bus_bandwidth", "codec_s", "to_bf16", "by_bits", "saved_s"),
)

ABOUT = (
    *("codec", "topology", "workers", "coordinates", "pieces", "network"),
    *("rate_mbit", "goodput_mbit", "rivals"),
)
"""The settings that table.csv shows beside a run's figures."""


@dataclass(frozen=True)
class Run:
    """A finished all-reduce with its spreads and numbers, None for those it does not have."""

    about: AllReduceSummary
    figures: dict[str, Any]

    @property
    def subject(self) -> str:
        """What two runs must share for their codecs to be comparable, including whether times were
        measured."""
        one = self.about
        settings = " ".join(f"{key}={value}" for key, value in sorted(one.network_settings.items()))
        about = (one.topology, one.workers, one.coordinates, one.kernel_backend, one.measured is not None)
        return f"{about} {settings}"

    @property
    def line(self) -> Line:
        one = self.about
        return [one.codec if one.pieces == 1 else f"{one.codec}, {one.pieces} segments"], self.figures

    @property
    def row(self) -> dict[str, object]:
        """This run's line of table.csv, in seconds and bits."""
        own = self.figures
        times = {
            f"{name}_{part}_s": getattr(own[name], part, None)
            for name in ("measured", "modelled")
            for part in ("median", "low", "high")
        }
        work = {name: getattr(own[name], "median", None) for name in ("measured_codec_s", "modelled_codec_s")}
        return {
            **{key: getattr(self.about, key) for key in ABOUT},
            "wire_bits_per_coordinate": getattr(own["wire_bits_per_coordinate"], "median", None),
            **times,
            "measured_over_modelled": own["measured_over_modelled"],
            "bus_bandwidth": own["bus_bandwidth"],
            **work,
            **{key: own.get(key) for key in ("to_bf16", "by_bits", "over_bits", "saved_s")},
        }


def compare(folders: Sequence[Path], output: Path) -> Page:
    """Writes table.md, table.csv and table.json to `output`; ValueError when nothing is done."""
    done, left_out = finished(folders)
    runs = _load(done)
    tables = []
    for subject in dict.fromkeys(run.subject for run in runs):
        alike = [run for run in runs if run.subject == subject]
        tables.append(figures_table(_title(alike[0].about), ["codec"], [run.line for run in alike], COLUMNS))
    page, rows = Page(tables, [*NOTES, *left_out]), [run.row for run in runs]
    page.write(output, rows, {"rows": rows, "left_out": left_out})
    return page


def _load(folders: Sequence[Path]) -> list[Run]:
    lines = frame(folders)
    found = spreads(lines.assign(kind=lines.kind.replace("emulated", "measured")), "run", "metric", "kind")
    runs = []
    for folder in folders:
        figures = {name: found.get((str(folder), *key)) for name, key in FIGURES.items()}
        runs.append(Run(AllReduceSummary.read(folder / FILE), figures))
    for run in runs:
        run.figures.update(_beside(run, runs))
    return runs


def _title(one: AllReduceSummary) -> str:
    kind = "modelled" if one.measured is None else "measured"
    return f"{one.topology} of {one.workers}, {one.coordinates:,} coordinates, network {one.network}, {kind}"


def _beside(run: Run, runs: Sequence[Run]) -> dict[str, Any]:
    """What follows from a run's summary, and from that of BF16 under the same settings if there is one."""
    one = run.about
    found = {"measured_over_modelled": one.ratio}
    found["bus_bandwidth"] = one.bus_bandwidth
    found["codec_s"] = (one.measured_codec_s or one.modelled_codec_s).median
    alike = [each.about for each in runs if each.subject == run.subject and each.about.codec == BASELINE]
    base = next(iter([other for other in alike if other.pieces == one.pieces] or alike), None)
    if base is not None and base.wire_bits_per_coordinate and one.wire_bits_per_coordinate:
        to_base = one.seconds / base.seconds
        by_bits = one.wire_bits_per_coordinate / base.wire_bits_per_coordinate
        found |= {"to_bf16": to_base, "by_bits": by_bits, "over_bits": to_base / by_bits}
        found["saved_s"] = base.seconds - one.seconds
    return found
