"""Tables in the docs that are generated from code: codecs from the registry, metrics from METRICS.

`python -m gradwire.harness.report.catalogue` regenerates them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gradwire.codecs.interface import Codec, Layout
from gradwire.codecs.registry import OWN, make_codec
from gradwire.codecs.traits import GROUPS
from gradwire.harness.comm.topology.registry import TOPOLOGIES
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.figures import study_records
from gradwire.harness.timing.measure.metric import Metric
from gradwire.harness.timing.measure.metrics import METRICS

MADE_BY = "gradwire.harness.report.catalogue"

HEADER = (
    *("codec", "source", "wire bits per coordinate", "topologies"),
    *("unbiased", "error feedback", "state", "metadata round"),
)

SIZES = (2, 4, 5)
"""Numbers of workers for which a codec is queried."""


def codec_table() -> str:
    """Markdown: a table for each group, with a row for each codec of this package in its default settings."""
    parts = []
    for group, names in codec_groups().items():
        rows = [HEADER, ("---",) * len(HEADER), *(_row(make_codec(name)) for name in names)]
        parts.append(f"**{group.capitalize()}**\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(parts)


def codec_groups() -> dict[str, list[str]]:
    """The codecs of this package by their group, in the order of `GROUPS` and of the registry."""
    groups = {name: make_codec(name).about.group for name in OWN}
    strange = {name: group for name, group in groups.items() if group not in GROUPS}
    assert not strange, f"about.group of {strange} is none of {GROUPS}"
    return {group: [name for name in OWN if groups[name] == group] for group in GROUPS}


def with_codec_rows(readme: str) -> str:
    """The README, whose row for each group lists the codecs of this package without a row of their own."""
    apart = set(re.findall(r"^\| \*\*codec\*\* `(\w+)`", readme, re.M))

    def row(found: re.Match[str]) -> str:
        names = [name for name in codec_groups()[found[1]] if name not in apart]
        return f"| **codecs** {' '.join(f'`{name}`' for name in names)} ({found[1]}) |"

    return re.sub(r"\| \*\*codecs\*\* .*? \((.*?)\) \|", row, readme)


def metric_table() -> str:
    """Markdown: a row for each metric of training runs and studies."""
    study_records()  # METRICS has those of studies then
    header = ("key", "unit", "in", "over ranks", "kind", "better", "meaning")
    rows = [header, ("---",) * len(header), *map(_metric, METRICS.values())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _metric(metric: Metric) -> tuple[str, ...]:
    kind = "as the run's times" if metric.timed else "measured"
    ranks, better = metric.ranks or "–", metric.better or "–"
    where = ", ".join(metric.places) or "comparison"
    return (f"`{metric.key}`", metric.unit or "–", where, ranks, kind, better, metric.meaning)


def replaced(text: str, which: str) -> str:
    """A page's text with its table `which` regenerated. Raises ValueError if the markers are missing."""
    first, last = f"<!-- {which}, made by {MADE_BY} -->", f"<!-- end of {which} -->"
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the page lacks the markers {first} … {last}; restore them")
    _, make = TABLES[which]
    return f"{before}{begin}\n{make()}\n{end}{after}"


def _row(codec: Codec) -> tuple[str, ...]:
    about = codec.about
    unbiased = (
        "yes" if codec.traits.unbiased else f"with `{about.unbiased_if}`" if about.unbiased_if else "no"
    )
    return (
        f"`{codec.name}`",
        about.source,
        about.wire_bits,
        _topologies(codec),
        unbiased,
        _feedback(codec),
        about.state,
        about.metadata,
    )


def _topologies(codec: Codec) -> str:
    if codec.traits.uses_backend:
        return "the backend's"
    able = [name for name in TOPOLOGIES if _runs_on(codec, name)]
    return "all" if len(able) == len(TOPOLOGIES) else ", ".join(able)


def _feedback(codec: Codec) -> str:
    """The cell that tells whether `codec.ef=true` works with the codec's default settings."""
    try:
        corrected = make_codec(codec.name, ef=True)
    except ValueError:
        return "its own" if codec.about.own_feedback else "no"
    stable = all(_runs_on(corrected, name) for name in TOPOLOGIES)
    return "yes" if stable else "refused at the default settings"


def _runs_on(codec: Codec, topology: str) -> bool:
    layout = Layout.flat(1 << 20)
    return all(codec.supports(topology, size, layout) is None for size in SIZES)


DOCS = Path("docs")
TABLES: Mapping[str, tuple[Path, Callable[[], str]]] = {
    "codecs": (DOCS / "codecs.md", codec_table),
    "metrics": (DOCS / "measurement.md", metric_table),
}
"""Each table's page, relative to the repository's root, and the function that makes it."""

if __name__ == "__main__":
    for name, (page, _) in TABLES.items():
        path = Path(__file__).resolve().parents[2] / page
        write_atomically(path, replaced(path.read_text(), name))
    front = Path(__file__).resolve().parents[2] / "README.md"
    write_atomically(front, with_codec_rows(front.read_text()))
