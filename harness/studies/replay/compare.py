"""Comparisons of replays: tables of codecs for each file, topology and number of workers, and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.record.directory import CONFIG
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.configs import Settings, covered, labels, labels_in_words
from gradwire.harness.report.tables import Column, Table, figure
from gradwire.harness.studies.comparison import Compared, Entry, figure_columns, titled_tables
from gradwire.harness.studies.replay.study import MEAN, ReplaySummary, bound_in_words, pooled, spread_of
from gradwire.harness.timing.measure.metric import PLAIN, SHORT, FigureFormat

BOUND = "replay.bound"

SUBJECT = ("gradients", "topology", "cluster", BOUND)
"""The settings that define the subject; all others belong to the codec."""

UNNAMED = (
    *("task", "resume", "kernels", "cluster.name", "cluster.timeout_s", "cluster.backend"),
    *("plots", "replay.plots", "replay.repeats", "seed"),
)
"""Settings that have no place in a name."""

NEEDED = ("gradients", "topology.name", "cluster.workers", "codec.name")
"""Settings that a replay must have to be named."""

SIZES = ("codec.bits", "codec.fraction", "codec.rank", "codec.widths")
"""Settings that determine the number of bits sent; `widths` does if there is only one."""

MAX_COLUMNS = 6
"""The largest number of columns of a table that shows subjects side by side."""


COLUMNS = (
    Column("vnmse", shown=PLAIN),
    *("vnmse_std", "db_above_bound", "wire_bits_per_coordinate"),
    Column("wire_bits_per_coordinate", "metadata_bits", "metadata bits"),
    Column("bytes_sent", "most_bytes_sent", "sent MB", FigureFormat(factor=1e-6, digits=3)),
    "codec_ns_per_coordinate",
)


FIRST_STEP = Column("vnmse_first_step", label="first step", shown=PLAIN)
"""A further column where files were replayed in a row."""

BUCKETS = "bucket_cap_mb"

NAMING = ("size", "codec", BUCKETS)
"""The keys of a file's description that become part of its name if files differ in them."""


NAMES = ("codec", "subject")
RECORDED = (
    *("vnmse_mean", "vnmse_std", "vnmse_min", "vnmse_max", "repeats", "wire_bits_per_coordinate"),
    *("bound_vnmse", "db_above_bound", "codec_ns_per_coordinate", "workers", "num_coordinates"),
)
"""The columns of table.csv: names, and keys of the summaries."""


@dataclass(frozen=True)
class Replayed:
    """A codec on a subject, named for this comparison; combines the replays that differ only in the seed."""

    codec: str
    words: str
    """The codec in the words of the field, for plots."""
    subject: str
    series: str
    """The subject without the number of workers."""
    family: str
    """The codec without its bits; replays with the same family form one line of a plot."""
    summary: ReplaySummary
    figures: dict[str, float | None]
    """Its figures by the keys of `COLUMNS`."""


NOTES = (
    "vNMSE: mean over the seeds and their standard deviation. Above bound: 10 log10 of the vNMSE over the "
    "rate–distortion bound, which reverse water-filling over the super-groups' variances allows at the same "
    "wire bits.",
    "Wire bits are those of an encoded gradient: a ring or a butterfly of n sends 2(n - 1) of them in all, a "
    "broadcast n(n - 1). Sent: megabytes of the rank that sends most; compare topologies by these.",
    "Codec: nanoseconds per coordinate of one synchronization on the busiest rank, all ranks in one process.",
)


BOUND_NOTE = (
    "Bound of a ring's or a butterfly's messages: ideal codes for every message, in groups of 16, their "
    "errors added. It is a reference, which a codec may fall below."
)

ROW_NOTE = (
    "Steps in a row: codecs keep their state from one to the next and begin without any in the first. vNMSE, "
    "bits and the bound are means over the row."
)


def compared(entries: Sequence[Entry], axes: Sequence[str]) -> Compared:
    """Tables of codecs by subject, and a side-by-side table for several subjects."""
    replays = _load(entries, axes)
    by_subject = dict[str, list[Replayed]]()
    for replay in replays:
        by_subject.setdefault(replay.subject, []).append(replay)
    tables = _side_by_side(replays, list(by_subject)) if len(by_subject) > 1 else []
    further = figure_columns(entries)
    in_rows = any(one.summary.vnmse_by_step for one in replays)
    columns = (COLUMNS[0], FIRST_STEP, *COLUMNS[1:]) if in_rows else COLUMNS
    tables += titled_tables(
        [(one.subject, ([one.codec], one.figures)) for one in replays], ["codec"], (*columns, *further)
    )
    tables += [table for subject, own in by_subject.items() for table in _by_step(subject, own)]
    rows = [{key: value for key, value in asdict(one).items() if key != "figures"} for one in replays]
    recorded = (*RECORDED, *(column.at for column in further))
    lines = [
        {key: getattr(one, key) for key in NAMES} | {key: getattr(one.summary, key) for key in recorded}
        for one in replays
    ]
    of_messages = any(one.summary.bound != MEAN for one in replays)
    notes = (*NOTES, *[BOUND_NOTE] * of_messages, *[ROW_NOTE] * in_rows)
    return Compared(tables, lines, notes, rows, partial(_draw, by_subject))


def _draw(by_subject: Mapping[str, list[Replayed]], output: Path) -> None:
    from gradwire.harness.studies.replay.plots import plot_comparison

    plot_comparison(by_subject, output)


def _load(entries: Sequence[Entry], axes: Sequence[str]) -> list[Replayed]:
    """One entry for each codec and subject, in order; replays that differ only in the seed are combined."""
    folders = [entry.folder for entry in entries]
    flat = [_settings(entry.settings) for entry in entries]
    for folder, settings in zip(folders, flat, strict=True):
        lacking = [key for key in NEEDED if not settings.get(key)]
        if lacking:
            raise UnusableFileError(folder / CONFIG, f"lacks {', '.join(lacking)}", REMEDY)
    summaries: list[ReplaySummary] = [entry.record for entry in entries]
    for settings in flat:
        settings["gradients"] = place_of(settings["gradients"])
    pairs = zip(flat, summaries, strict=True)
    files = gradient_names({settings["gradients"]: one.gradients for settings, one in pairs})
    for settings in flat:
        settings["gradients"] = files[settings["gradients"]]
    codecs = labels([_part(settings, subject=False) for settings in flat], axes)
    words = labels_in_words([_part(settings, subject=False) for settings in flat], axes)
    families = labels_in_words([_without_bits(settings) for settings in flat], axes)
    parts = [_part(settings, subject=True) for settings in flat]
    bounds = [_named_bound(part.get(BOUND, MEAN)) for part in parts]
    series = [
        f"{part['gradients']}, {part['topology.name']}{bound}"
        for part, bound in zip(parts, bounds, strict=True)
    ]
    subjects = [
        f"{part['gradients']}, {part['topology.name']} of {part['cluster.workers']}{bound}"
        for part, bound in zip(parts, bounds, strict=True)
    ]
    places = dict[tuple[str, str], list[int]]()
    for index, place in enumerate(zip(codecs, subjects, strict=True)):
        places.setdefault(place, []).append(index)
    found = []
    for index, *others in places.values():
        own = [summaries[each] for each in (index, *others)]
        whole = pooled(own)
        names = (codecs[index], words[index], subjects[index], series[index], families[index])
        found.append(Replayed(*names, whole, figures_of(own, whole)))
    return found


def _named_bound(bound: str) -> str:
    """The end of a subject's name that keeps figures of different bounds apart; empty for the mean's."""
    return "" if bound == MEAN else f", bound{bound_in_words(bound)}"


def figures_of(own: Sequence[ReplaySummary], whole: ReplaySummary) -> dict[str, float | None]:
    """The figures of combined replays, and of `whole`, which pools them."""
    metadata = [bits for one in own if (bits := one.wire_bits_by_phase.get("metadata")) is not None]
    return {
        "vnmse": whole.vnmse_mean,
        "metadata_bits": fmean(metadata or [0.0]),
        "most_bytes_sent": max(sent for one in own for sent in one.bytes_sent_per_rank),
        **{
            key: getattr(whole, key)
            for key in (
                "vnmse_std",
                "vnmse_first_step",
                "db_above_bound",
                "wire_bits_per_coordinate",
                "codec_ns_per_coordinate",
                *whole.columns(),
            )
        },
    }


def place_of(gradients: str | Sequence[str]) -> str:
    """The path of the gradients as one text: of a row, that of the first file and the name of the last."""
    return gradients if isinstance(gradients, str) else f"{gradients[0]}–{Path(gradients[-1]).name}"


def gradient_names(about: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Names for files of gradients, by path, made from their descriptions: `llama1b step 20`, or of a row
    `llama1b steps 20–29`.

    Files of runs that differ only in the seed share a name. Files without a description, or with the same
    description and seed, are named individually: see `file_names`.
    """
    if not all({"model", "step", "seed"} <= own.keys() for own in about.values()):
        return file_names(list(about))
    naming = [key for key in NAMING if len({own.get(key) for own in about.values()}) > 1]
    names = {
        path: " ".join([*(_in_words(key, own.get(key)) for key in ("model", *naming)), _steps_in_words(own)])
        for path, own in about.items()
    }
    distinct = {(names[path], own["seed"]) for path, own in about.items()}
    return names if len(distinct) == len(about) else file_names(list(about))


def _in_words(key: str, value: object) -> str:
    return f"buckets of {value:g} MiB" if key == BUCKETS and isinstance(value, int | float) else str(value)


def _steps_in_words(about: Mapping[str, Any]) -> str:
    last = about.get("last_step")
    return f"step {about['step']}" if last is None else f"steps {about['step']}–{last}"


def file_names(paths: Sequence[str]) -> dict[str, str]:
    """A name for each file: the shortest end of its path, without the suffix, that is unique."""
    parts = {path: Path(path).with_suffix("").parts for path in paths}
    for length in range(1, max(map(len, parts.values())) + 1):
        names = {path: "/".join(own[-length:]) for path, own in parts.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: path for path in paths}


def _settings(settings: Settings) -> Settings:
    """The settings without those that do not belong in a codec's name: where it ran, and a single round."""
    if settings.get("replay.rounds") == 1:
        del settings["replay.rounds"]
    return {key: value for key, value in settings.items() if not covered(key, UNNAMED)}


def _part(settings: Settings, *, subject: bool) -> Settings:
    return {key: value for key, value in settings.items() if covered(key, SUBJECT) == subject}


def _without_bits(settings: Settings) -> Settings:
    """The settings without those that determine a codec's bits."""
    own = _part(settings, subject=False)
    fixed = len(own.get("codec.widths", [])) == 1
    return {key: value for key, value in own.items() if key not in SIZES[: 4 if fixed else 3]}


def step_table(summary: ReplaySummary) -> Table:
    """Error and bits of each step of a row."""
    rows = [
        [step, figure(spread_of(errors)["vnmse_mean"]), figure(summary.wire_bits_by_step.get(step))]
        for step, errors in summary.vnmse_by_step.items()
    ]
    return Table("Steps in a row", ["step", "vNMSE", "wire bits per coordinate"], rows)


def _by_step(subject: str, replays: Sequence[Replayed]) -> list[Table]:
    """vNMSE of every codec (columns) in every step of a row; none for a single file."""
    steps = list(dict.fromkeys(step for one in replays for step in one.summary.vnmse_by_step))
    tables = []
    for first in range(0, len(replays) if steps else 0, MAX_COLUMNS):
        columns = replays[first : first + MAX_COLUMNS]
        errors = [one.summary.vnmse_by_step for one in columns]
        rows = [[step, *(_of_step(own, step) for own in errors)] for step in steps]
        tables.append(Table(f"vNMSE by step, {subject}", ["step", *(one.codec for one in columns)], rows))
    return tables


def _of_step(errors: Mapping[str, Sequence[float | None]], step: str) -> str:
    return figure(spread_of(errors[step])["vnmse_mean"], SHORT) if step in errors else "–"


def _side_by_side(replays: Sequence[Replayed], subjects: Sequence[str]) -> list[Table]:
    """vNMSE of every codec (rows) on every subject (columns)."""
    found = {(replay.codec, replay.subject): figure(replay.figures["vnmse"], SHORT) for replay in replays}
    names = list(dict.fromkeys(replay.codec for replay in replays))
    tables = []
    for first in range(0, len(subjects), MAX_COLUMNS):
        columns = subjects[first : first + MAX_COLUMNS]
        rows = [[name, *(found.get((name, column), "–") for column in columns)] for name in names]
        tables.append(Table("vNMSE", ["codec", *columns], rows))
    return tables
