"""Effects in words: what was found, what is claimed of it, and how far seeds differ."""

from __future__ import annotations

import math

from gradwire.harness.report.claims.effects import Effect
from gradwire.harness.report.evaluation import MissingError
from gradwire.harness.timing.measure.metric import FigureFormat

MOST_LOGARITHM = 20
"""The logarithm of a ratio above which it is written as a difference of logarithms."""


def effect_in_words(effect: Effect, tolerance: float) -> str:
    """A figure, what is claimed of it with the claim's tolerance, and the seeds' spread:
    `5.35 where at least 10 is claimed (1 without the effect), spread 1.51`."""
    values = effect.ours.by_seed.values()
    endless = [value for value in values if not math.isfinite(value)]
    if effect.endless or len(endless) == len(values):
        return effect.misses or f"no finite effect with {len(endless)} of {len(values)} seeds"
    some = f"finite with {len(values) - len(endless)} of {len(values)} seeds" if endless else ""
    return "; ".join(filter(None, [effect.misses, some, _sized(effect, tolerance)]))


def _sized(effect: Effect, tolerance: float) -> str:
    """The size and its spread, of the seeds that have one."""
    try:
        spread = effect.spread
    except MissingError as error:
        return f"{_found(effect, tolerance)}; {error}"
    if effect.is_ratio and max(abs(effect.mean), spread) < MOST_LOGARITHM:
        return f"a ratio of {math.exp(effect.mean):.4g}, spread by a factor of {math.exp(spread):.4g}"
    return f"{_found(effect, tolerance)}, spread {_written(spread, effect.ours.shown)}"


def _found(effect: Effect, tolerance: float) -> str:
    """The size, and what is claimed of it."""
    apart = effect.ours.shown
    if effect.harm is not None:
        own, harm = _written(effect.mean, apart), _written(effect.harmed, apart)
        return f"{own} of a harm of {harm} ({_written(tolerance * effect.harmed, apart)} allowed)"
    if effect.claimed is None:
        return f"a difference of {_written(effect.mean, apart)}"
    sign = -1 if effect.falls else 1
    found, claimed = (effect.null + sign * each for each in (effect.mean, effect.claimed))
    printed = _written(claimed, effect.shown)
    beyond = ""
    if effect.is_least:
        printed = f"at {'most' if effect.falls else 'least'} {printed}"
    else:
        margin = tolerance * effect.claimed
        printed = _written(claimed, effect.shown, f" ± {margin * effect.shown.factor:.4g}")
        if abs(effect.mean - effect.claimed) > margin:
            beyond = f"; a {'larger' if effect.mean > effect.claimed else 'smaller'} effect"
    without = f" ({_written(effect.null, effect.shown)} without the effect)" if effect.null else ""
    return f"{_written(found, effect.shown)} where {printed} is claimed{without}{beyond}"


def _written(value: float, shown: FigureFormat, margin: str = "") -> str:
    """A number with its margin and its unit."""
    return f"{value * shown.factor:.4g}{margin}{f' {shown.unit}' if shown.unit else ''}"
