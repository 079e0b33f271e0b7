"""Figures of verdicts in words: what was measured, with its unit, of which codec and setting."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gradwire.harness.report.claims.evidence import METRIC, Used
from gradwire.harness.report.claims.verdict import Verdict
from gradwire.harness.report.evaluation import SeedFigure, spread
from gradwire.harness.report.names import FIRST, name_of, names_of
from gradwire.harness.report.tables import figure
from gradwire.harness.timing.measure.metrics import METRICS

DIGITS = 3
"""Significant digits of a claim's figures."""

QUANTITIES = {
    "vnmse": "error (vNMSE)",
    "rounds_per_second": "steps per second",
    "step_time_s": "time of a step",
    "compute_s": "computation in a step",
    "compression_s": "compression in a step",
    "rounds": "rounds",
    "t_wait": "waiting over computation (T_wait)",
    "row": "overlap over waiting (ROW)",
    "sampling.window_correlation": "correlation with the entropy",
    "sampling.rate_correlation": "correlation with the entropy",
    "smoothing.after.kurtosis": "kurtosis after the Hadamard transform",
    "smoothing.before.kurtosis": "kurtosis before it",
    "smoothing.after.median_kurtosis": "kurtosis within groups after the Hadamard transform",
    "weights.error": "error of the weights",
    "differences.error": "error of the differences",
    "differences.over_weights": "error of the differences, relative to the weights",
    "norms.below_10th": "norms below a tenth of the median",
    "wait_s": "waiting for gradients in a step",
    "utilization": "use of the links",
    "q_ratio_first": "ratio of the first stage (bits over 32)",
    "followed_after": "rounds until the ratio has followed",
    "least_bits": "least bits of a value",
    "over_uncompressed": "speed-up over no compression",
    "training_days": "predicted training",
    "gradient_comm_s": "gradients on the wire",
    "gradients_s": "gradients on the wire",
    "tflops": "predicted throughput",
    "weight_error": "error of the weights",
    "bytes_sent": "sent by all ranks",
    "exposed_comm_s": "exposed communication in a step",
    "ns_per_coordinate": "time per coordinate",
    "zeroed_share": "coordinates turned to zero",
    "evolution.largest_over_theory": "PowerSGD's largest error over σ·g(r)",
    "evolution.random_over_theory": "PowerSGD's error over σ·g(r) on random numbers",
    "evolution.power_over_theory": "PowerSGD's error over σ·g(r) on gradients",
    "sampling.window_mse": "mean squared error of the entropy",
    "evolution.sigma_ratio": "spread of gradients (σ), last over first step",
    "evolution.entropy_change": "change of the entropy",
}
"""Quantities that METRICS labels for the narrow head of a table."""


def quantity(used: Used) -> str:
    """The quantity of a figure, with what is claimed of it: `training time to 1.05 × the baseline's
    perplexity`."""
    if used.name in ("tta", "steps_to", "stays"):
        return TARGETS[used.name].format(_target(used))
    if used.name == "last":
        return _named(used.asked[0], used)
    if used.name == "during":
        begin, end = (f"{100 * share:g}" for share in used.asked[1:])
        return f"{_named(used.asked[0], used)} from {begin} to {end} % of the run"
    return _named(used.asked[0] if used.name == "figure" else used.name, used)


WITH_FIRST = ("bits", "rank")
"""Axes that a codec's name takes along: `DynamiQ, 5 bits`."""

TARGETS = {"tta": "training time to {}", "steps_to": "steps to {}", "stays": "stays beyond {} (1: yes)"}


def _target(used: Used) -> str:
    (factor,) = used.asked
    cells = used.figure.baseline if isinstance(used.figure, SeedFigure) else ()
    named = [(key, cells[0].axes.get(key)) for key in FIRST] if cells else []
    baseline = next((name_of(key, value) for key, value in named if value is not None), "the baseline")
    score = f"of {baseline}" if baseline == "no compression" else f"{baseline}'s"
    judged = _judged_by(used)
    if score.startswith("of"):
        return f"{factor:g} × the {judged} without compression"
    return f"{factor:g} × {score} {judged}"


def _judged_by(used: Used) -> str:
    """The metric that the runs of a figure are judged by, in words."""
    cells = used.figure.cells if isinstance(used.figure, SeedFigure) else ()
    found = next((cell.metric for cell in cells if cell.metric), "")
    return _labelled(found) if found else "final metric"


def _named(metric: str, used: Used) -> str:
    return f"final {_judged_by(used)}" if metric == "final_metric" else _labelled(metric)


def _labelled(metric: str) -> str:
    if metric in QUANTITIES:
        return QUANTITIES[metric]
    return METRICS[metric].words if metric in METRICS else metric.replace("_", " ").replace(".", ", ")


def value(used: Used) -> str:
    """A figure with its range and unit: `52.2 s (41.4–54.6)`, `not reached`."""
    found = used.figure
    if not isinstance(found, SeedFigure):
        return f"{found:g}{f' {used.unit}' if used.unit else ''}"
    text = figure(spread(found.by_seed.values()), replace(found.shown, digits=DIGITS))
    middle, bracket, rest = text.partition(" (")
    unit = found.shown.unit
    if middle == "∞":
        middle, unit = "not reached", ""
    return f"{middle}{f' {unit}' if unit else ''}{bracket}{rest}"


def resolution(verdict: Verdict) -> str:
    """Says what decided a verdict, or why nothing did, with its foil in words."""
    foil = verdict.claim.foil
    if foil is None:
        return verdict.detail
    found = {key: new for key, (_, new) in foil.swaps.items()} | dict(foil.also)
    metric = found.pop(METRIC, None)
    named = names_of({key: new for key, new in found.items() if new is not None})
    words = ", ".join(filter(None, [_labelled(str(metric)) if metric is not None else "", named]))
    return verdict.detail.replace(f"its foil, {foil.name},", f"{words}, which has to fail it,")


def in_words(figures: Iterable[Used]) -> list[str]:
    """A line for each quantity: `training time to 1.1 × BF16's perplexity: AQGB 52.2 s (41.4–54.6), no
    compression 68.8 s`; each figure once, and what all of a line share before the colon."""
    once = list({each.text: each for each in figures}.values())
    groups = itertools.groupby(once, lambda each: quantity(each) if each.name else "printed")
    merged: dict[str, list[Used]] = {}
    for name, own in groups:
        merged.setdefault(name, []).extend(own)
    return [_line(name, own) for name, own in merged.items()]


def _line(name: str, figures: Sequence[Used]) -> str:
    if not figures[0].name:
        return f"{name}: " + "; ".join(f"{each.text}: {value(each)}" for each in figures)
    keys = list(dict.fromkeys(key for each in figures for key in each.cells))
    shared = [key for key in keys if len({repr(each.cells.get(key)) for each in figures}) == 1]
    if len(figures) == 1:
        shared = [key for key in keys if key not in FIRST]
    levels = dict.fromkeys(each.chance for each in figures if each.chance is not None)
    guesses = [
        f"guesses {100 * level:.3g} %" for level in levels if "accuracy" in name and "time" not in name
    ]
    if "accuracy" in name and all(each.guessed for each in figures):
        guesses.insert(0, "scores at chance")
    head = ", ".join(filter(None, [names_of(figures[0].cells, shared), *guesses]))
    settings: dict[str, list[Used]] = {}
    for each in figures:
        rest = [key for key in each.cells if key not in (*shared, *FIRST, *WITH_FIRST)]
        settings.setdefault(names_of(each.cells, rest), []).append(each)
    parts = [_setting(own, each, shared) for own, each in settings.items()]
    return f"{name}{f' ({head})' if head else ''}: " + "; ".join(parts)


def _setting(setting: str, figures: Sequence[Used], shared: Sequence[str]) -> str:
    """The figures of one setting: `Gemma 1B: DynamiQ 5.74 s (4.36–∞), BF16 6.95 s`."""
    parts = []
    for each in figures:
        keys = [key for key in each.cells if key in (*FIRST, *WITH_FIRST) and key not in shared]
        own = names_of(each.cells, keys)
        parts.append(f"{own} {value(each)}" if own else value(each))
    is_one = len(parts) == 1 and parts[0] == value(figures[0])
    return f"{setting}{' ' if is_one else ': '}{', '.join(parts)}" if setting else ", ".join(parts)
