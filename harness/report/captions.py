"""Captions of plots in words, from the names of their files."""

from __future__ import annotations

import re

from gradwire.harness.report.names import NAMES, name_of

PLOTS = {
    "metric-steps": "by step",
    "metric-end": "by time, near the end",
    "metric": "by time",
    "tta": "time to the targets",
    "breakdown": "where the time of a step goes",
    "over-workers": "over the number of workers",
    "schemes": "rounds, use of links, waiting and ROW of each scheme",
    "blocks": "over the number of blocks",
    "rates": "over the rate of the links",
    "ratio": "ratio of the first stage over time",
    "ranks": "time by rank",
    "norms": "norms of groups",
    "widths": "squared norms and the widths chosen",
    "super-groups": "error of super-groups by width",
    "weights": "weights and their differences on the lattice of int4",
    "smoothing": "gradients before and after the Hadamard transform",
    "vnmse": "error (vNMSE) over the run",
    "entropy": "entropy over the run",
    "distributions": "distribution by layer and step",
    "correlations": "correlations within matrices",
    "compression-error": "error by rank over the run",
    "sampling-rates": "entropy by sampling rate",
    "sampling-steps": "relative change of the entropy",
    "bandwidth": "over the rate of the links",
}
"""The words for what a plot shows, by the beginning of its name."""

PARTS = {"simulated": "simulated clock", "wall": "wall clock", "run": ""}


def caption(name: str) -> str:
    """The caption of a plot: `metric-end-perplexity-simulated-gemma1b` is "by time, near the end: perplexity,
    simulated clock, Gemma 1B"."""
    stem = max((stem for stem in PLOTS if name == stem or name.startswith(f"{stem}-")), key=len, default="")
    if not stem:
        return name.replace("-", " ").replace("_", " ")
    rest = re.sub(r"-(step|ring-of)-(\d+)", r"-\1\2", name[len(stem) :]).replace(
        "llama1b-mmlu", "llama1b_mmlu"
    )
    rest = rest.replace("ring-of", "ring_of_").replace("bert-large", "bert_large")
    parts = [_part(part) for part in rest.split("-") if part]
    about = ", ".join(part for part in parts if part)
    return f"{PLOTS[stem]}: {about}" if about else PLOTS[stem]


def _part(part: str) -> str:
    if part in PARTS:
        return PARTS[part]
    if part in NAMES["model"] or re.match(r"[a-z]+_\d", part):
        return name_of("model", part)
    kept = re.fullmatch(r"(step|weights)(\d+)", part)
    if kept:
        return f"step {kept[2]}"
    return f"part {part}" if part.isdigit() else part.replace("_", " ")
