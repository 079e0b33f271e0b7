"""Captions of plots in words, from the names of their files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gradwire.harness.report.names import NAMES, name_of

PLOTS = {
    "metric-steps": "by step",
    "metric-end": "by time, near the end",
    "metric": "by time",
    "tta": "time to the targets",
    "breakdown": "where the time of a step goes",
    "over-workers": "over the number of workers",
    "schemes": "rounds, share of links used, waiting over computation (T_wait) and ROW of each scheme",
    "blocks": "over the number of blocks",
    "rates": "over the rate of the links",
    "ratio": "ratio of the first stage over time",
    "ranks": "time by rank",
    "norms": "distribution of the norms of groups",
    "widths": "squared norms and the widths chosen",
    "super-groups": "distribution of the super-groups' errors, of all widths together",
    "weights": "weights and their differences on the lattice of int4",
    "smoothing": "gradients before and after the Hadamard transform",
    "vnmse": "error (vNMSE) over the run",
    "entropy": "differential entropy of gradients over the run",
    "distributions": "distribution of gradients by layer and step",
    "correlations": "correlations within matrices",
    "compression-error": "error by rank over the run",
    "sampling-rates": "entropy over the run by sampling rate",
    "sampling-steps": "relative change of the entropy",
    "bandwidth": "bytes sent over time in two steps; shaded: computation; dashed: the rate of the link",
}
"""The words for what a plot shows, by the beginning of its name."""

PARTS = {"simulated": "simulated clock", "wall": "wall clock", "run": ""}


def caption(name: str, shows: str = "") -> str:
    """The caption of a plot: `metric-end-perplexity-simulated-gemma1b` is "by time, near the end: perplexity,
    simulated clock, Gemma 1B"; `shows` replaces what plots of that name usually show."""
    stem = max((stem for stem in PLOTS if name == stem or name.startswith(f"{stem}-")), key=len, default="")
    if not stem:
        return name.replace("-", " ").replace("_", " ")
    rest = re.sub(r"-(step|ring-of)-(\d+)", r"-\1\2", name[len(stem) :]).replace(
        "llama1b-mmlu", "llama1b_mmlu"
    )
    rest = rest.replace("ring-of", "ring_of_").replace("bert-large", "bert_large")
    parts = [_part(part) for part in rest.split("-") if part]
    about = ", ".join(part for part in parts if part)
    told = shows or PLOTS[stem]
    return f"{told}: {about}" if about else told


def legend_key(codecs: Iterable[str]) -> str:
    """The codecs whose names in legends do not say what they are: `in legends fp32 is no compression`; empty
    if all say it."""
    named = {code: name_of("codec", code) for code in dict.fromkeys(codecs) if code in NAMES["codec"]}
    unclear = [f"{code} is {name}" for code, name in named.items() if _letters(code) not in _letters(name)]
    return f"in legends {', '.join(unclear)}" if unclear else ""


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _part(part: str) -> str:
    if part in PARTS:
        return PARTS[part]
    if part in NAMES["model"] or re.match(r"[a-z]+_\d", part):
        return name_of("model", part)
    kept = re.fullmatch(r"(step|weights)(\d+)", part)
    if kept:
        return f"step {kept[2]}"
    return f"part {part}" if part.isdigit() else part.replace("_", " ")
