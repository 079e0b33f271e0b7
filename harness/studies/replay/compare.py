"""Comparing replays: tables of codecs for each file, topology and number of workers, and plots."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.seal import check_done
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.record.writer import CONFIG, SUMMARY
from gradwire.harness.report.configs import Settings, covered, flatten, labels
from gradwire.harness.report.page import finished, page_markdown, page_text, write_page
from gradwire.harness.report.tables import Table, number
from gradwire.harness.studies.replay.summary import ReplaySummary

SUBJECT = ("gradients", "topology", "cluster")
"""What a codec is tried on; everything else in a configuration belongs to the codec."""

UNTOLD = (
    *("task", "resume", "kernels", "cluster.name", "cluster.timeout_s", "cluster.backend"),
    *("replay.plots", "replay.repeats"),
)
"""Settings that have no place in a name."""

NEEDED = ("gradients", "topology.name", "cluster.workers", "codec.name")
"""Settings without which a replay has no name."""

SIZES = ("codec.bits", "codec.fraction", "codec.rank", "codec.widths")
"""Settings that say how much is sent; widths do if there is one."""

MAX_COLUMNS = 6
"""Most columns of a table that shows subjects side by side."""


@dataclass(frozen=True)
class Replayed:
    """One finished replay: its codec's and its subject's names in this comparison."""

    codec: str
    subject: str
    family: str
    """The codec without its bits: what belongs on one line of a plot."""
    summary: ReplaySummary


@dataclass(frozen=True)
class ReplayComparison:
    """Finished replays in the order given, and a line for each that has no figures."""

    replays: list[Replayed]
    left_out: list[str]

    @property
    def subjects(self) -> list[str]:
        return list(dict.fromkeys(replay.subject for replay in self.replays))

    @property
    def tables(self) -> list[Table]:
        side_by_side = _side_by_side(self.replays, self.subjects) if len(self.subjects) > 1 else []
        return [*side_by_side, *(_figures(self.of(subject), subject) for subject in self.subjects)]

    def of(self, subject: str) -> list[Replayed]:
        return [replay for replay in self.replays if replay.subject == subject]

    @property
    def text(self) -> str:
        """For a terminal."""
        return page_text(self.tables, [*NOTES, *self.left_out], between="\n\n")

    @property
    def markdown(self) -> str:
        return page_markdown(self.tables, [*NOTES, *self.left_out])


NOTES = (
    "vNMSE: mean over the seeds and their standard deviation. Above bound: 10 log10 of the vNMSE over the "
    "rate–distortion bound, which reverse water-filling over the super-groups' variances allows at the same "
    "wire bits.",
    "Wire bits are those of an encoded gradient: a ring or a butterfly of n sends 2(n - 1) of them in all, a "
    "broadcast n(n - 1). Sent: megabytes of the rank that sends most; compare topologies by these.",
    "Codec: nanoseconds per coordinate of one synchronization on the busiest rank, all ranks in one process.",
)


def compare_replays(folders: Sequence[Path], output: Path, axes: Sequence[str] = ()) -> ReplayComparison:
    """Compare the replays in `folders`; writes table.md, table.csv, table.json and plots to `output`.

    Raises ValueError when none is done.
    """
    from gradwire.harness.studies.replay.plots import plot_comparison

    done, left_out = finished(folders, "replay")
    comparison = ReplayComparison(_load(done, axes), left_out)
    write_page(output, comparison.markdown, [asdict(replay) for replay in comparison.replays], left_out)
    _write_csv(comparison.replays, output / "table.csv")
    plot_comparison(comparison, output)
    return comparison


def _load(folders: Sequence[Path], axes: Sequence[str]) -> list[Replayed]:
    for folder in folders:
        check_done(folder)
    configs = [read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder) for folder in folders]
    flat = [_settings(config) for config in configs]
    for folder, settings in zip(folders, flat, strict=True):
        lacking = [key for key in NEEDED if not settings.get(key)]
        if lacking:
            raise UnusableFileError(folder / CONFIG, f"lacks {', '.join(lacking)}", REMEDY)
    files = file_names([str(settings["gradients"]) for settings in flat])
    for settings in flat:
        settings["gradients"] = files[str(settings["gradients"])]
    codecs = labels([_part(settings, subject=False) for settings in flat], axes)
    families = labels([_without_bits(settings) for settings in flat], axes)
    subjects = _subjects([_part(settings, subject=True) for settings in flat])
    summaries = [ReplaySummary.read(folder / SUMMARY) for folder in folders]
    return [Replayed(*names) for names in zip(codecs, subjects, families, summaries, strict=True)]


def file_names(paths: Sequence[str]) -> dict[str, str]:
    """A name for each file: as little of its path's end, without the suffix, as tells it from the others."""
    parts = {path: Path(path).with_suffix("").parts for path in paths}
    for length in range(1, max(map(len, parts.values())) + 1):
        names = {path: "/".join(own[-length:]) for path, own in parts.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: path for path in paths}


def _settings(config: dict[str, Any]) -> Settings:
    """Flat, without what does not tell codecs apart: where they ran, and one round, which is the rule."""
    settings = flatten(config)
    if settings.get("replay.rounds") == 1:
        del settings["replay.rounds"]
    return {key: value for key, value in settings.items() if not covered(key, UNTOLD)}


def _part(settings: Settings, *, subject: bool) -> Settings:
    return {key: value for key, value in settings.items() if covered(key, SUBJECT) == subject}


def _without_bits(settings: Settings) -> Settings:
    """Without the settings that a codec's size on the wire follows from."""
    own = _part(settings, subject=False)
    fixed = len(own.get("codec.widths", [])) == 1
    return {key: value for key, value in own.items() if key not in SIZES[: 4 if fixed else 3]}


def _subjects(parts: Sequence[Settings]) -> list[str]:
    """`<file>, <topology> of <workers>`."""
    return [f"{part['gradients']}, {part['topology.name']} of {part['cluster.workers']}" for part in parts]


def _side_by_side(replays: Sequence[Replayed], subjects: Sequence[str]) -> list[Table]:
    """vNMSE of every codec (rows) on every subject (columns)."""
    found = {(replay.codec, replay.subject): number(replay.summary.vnmse_mean, 3) for replay in replays}
    names = list(dict.fromkeys(replay.codec for replay in replays))
    tables = []
    for first in range(0, len(subjects), MAX_COLUMNS):
        columns = subjects[first : first + MAX_COLUMNS]
        rows = [[name, *(found.get((name, column), "–") for column in columns)] for name in names]
        tables.append(Table("vNMSE", ["codec", *columns], rows))
    return tables


def _figures(replays: Sequence[Replayed], subject: str) -> Table:
    figures = ["vNMSE", "±", "dB above bound", "wire bits", "metadata bits", "sent MB", "codec ns"]
    return Table(subject, ["codec", *figures], [_row(replay) for replay in replays])


def _row(replay: Replayed) -> list[str]:
    summary = replay.summary
    above = summary.db_above_yardstick
    return [
        replay.codec,
        number(summary.vnmse_mean),
        number(summary.vnmse_std, 2),
        "–" if above is None else f"{above:.1f}",
        number(summary.wire_bits_per_coordinate),
        number(summary.wire_bits_by_phase.get("metadata", 0.0)),
        number(max(summary.bytes_sent_per_rank) / 1e6, 3),
        number(summary.codec_ns_per_coordinate, 3),
    ]


def _write_csv(replays: Sequence[Replayed], path: Path) -> None:
    """One line per replay."""
    figures = (
        *("vnmse_mean", "vnmse_std", "vnmse_min", "vnmse_max", "repeats", "wire_bits_per_coordinate"),
        *("yardstick_vnmse", "db_above_yardstick", "codec_ns_per_coordinate", "workers", "num_coordinates"),
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["codec", "subject", *figures])
        for replay in replays:
            values = [getattr(replay.summary, figure) for figure in figures]
            writer.writerow(
                [replay.codec, replay.subject, *("" if value is None else value for value in values)]
            )
