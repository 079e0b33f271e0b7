"""The table of simulated trainings, with a line for each, combined over seeds, and their descriptions in
words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gradwire.harness.network.configured import common_text, rate_text
from gradwire.harness.record.directory import PLOTS
from gradwire.harness.report.tables import figures_table
from gradwire.harness.studies.comparison import Compared, Entry, figure_columns, over_seeds
from gradwire.harness.studies.simulate.study import SimulateSummary

NOTES = (
    "All figures are modelled. A round is complete when all workers' backward passes are; waits and overlap "
    "are those of complete rounds after the first.",
    "T_wait: mean wait in a round over the mean computation in one. ROW: the least overlap over the longest "
    "wait, means over rounds (AQGB equation 2). Q_ratio: bits over 32 for each value, after the first stage "
    "and at last. Use of links: bytes that came in.",
)

USUAL_FLOOR = 0.125


def compared(entries: Sequence[Entry], axes: Sequence[str]) -> Compared:
    """A line for each training, combined over seeds."""
    found: list[SimulateSummary] = [entry.record for entry in entries]
    abouts = [about(one) for one in found]
    varied = [key for key in abouts[0] if len({each[key] for each in abouts}) > 1] or ["scheme"]
    same = [text for key, text in abouts[0].items() if key not in (*varied, "rate") and text]
    title = f"{common_text(one.network_text for one in found)}; {', '.join(same)}"
    groups: dict[tuple[str, ...], list[SimulateSummary]] = {}
    for one, each in zip(found, abouts, strict=True):
        groups.setdefault(tuple(each[key] for key in varied), []).append(one)
    columns = figure_columns(entries)
    fields = [column.at for column in columns]
    lines = [(name, over_seeds(own, fields)) for name, own in groups.items()]
    rows = [
        {**each, "network": one.network_text, "seed": one.seed} | {key: getattr(one, key) for key in fields}
        for one, each in zip(found, abouts, strict=True)
    ]
    table = figures_table(title, varied, lines, columns)
    return Compared([table], rows, NOTES, draw=partial(_draw, found))


def _draw(found: Sequence[SimulateSummary], output: Path) -> None:
    from gradwire.harness.studies.simulate.plots import plot_sweep

    if len(found) > 1:
        plot_sweep(found, output / PLOTS)


def scheme_text(one: SimulateSummary) -> str:
    """The scheme in words: `4 bit`, `32 bit` for none, `aqgb`, or with another floor `aqgb, floor 0.375`."""
    if one.scheme == "aqgb" and one.floor != USUAL_FLOOR:
        return f"aqgb, floor {one.floor:g}"
    return {"none": "32 bit", "fixed": f"{one.bits} bit"}.get(one.scheme, one.scheme)


def about(one: SimulateSummary) -> dict[str, str]:
    """The settings in which simulations differ, except the seed, in words."""
    settings = one.network_settings
    return {
        "scheme": scheme_text(one),
        "workers": f"{one.workers} workers",
        "rate": rate_text(one.rate_mbit) + (", changing" if settings["rate_changes"] else ""),
        "sent": "multicast" if settings["multicast"] else "unicast",
        "blocks": blocks_text(one),
        "compute times": times_text(settings),
        "seconds": f"{one.seconds:g} s",
    }


def blocks_text(one: SimulateSummary) -> str:
    """The blocks in words: `4 blocks`, with their parameters if the network defines them."""
    count = len(one.blocks)
    words = f"{count} block{'s' * (count > 1)}"
    if one.split is not None:
        return words
    return words + " of " + ", ".join(f"{row[0] / 1e6:.3g}" for row in one.blocks) + " million"


def times_text(settings: Mapping[str, Any]) -> str:
    """The computation times in words: `1.5 s`, `1.5 s ± 10 % per block`, `1.39 s ± 4 % per step, 16.5 %
    stragglers`."""
    text = f"{settings['compute_s']:g} s"
    if settings["jitter"]:
        text += f" ± {100 * settings['jitter']:.3g} % per {settings['jitter_per']}"
    if settings["straggler_share"]:
        text += f", {100 * settings['straggler_share']:.3g} % stragglers"
    return text
