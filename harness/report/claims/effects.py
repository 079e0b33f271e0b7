"""Effects: the differences that claims are about, each with its spread over paired seeds.

A predicate is made of relations, which return effects instead of answers. Whether an effect is resolved, and
how near to the printed one it has to be, is decided here for all claims alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, overload

from gradwire.harness.report.evaluation import MissingError, SeedFigure
from gradwire.harness.timing.measure.metric import PLAIN, FigureFormat

if TYPE_CHECKING:
    from gradwire.harness.report.claims.evidence import Evidence

RESOLUTION = 2.0
"""The least multiple of the seeds' spread that an effect has to have."""

MOST_TOLERANCE = 0.2
"""The largest tolerance, as a share of the effect that the paper claims."""

EXACT_TASKS = ("predict", "simulate", "retime")
"""Tasks whose figures follow from their settings alone, so that a single seed has no spread."""

Number = SeedFigure | float


@dataclass(frozen=True, eq=False)
class Effect:
    """One difference, signed so that the claim wants it above zero.

    Without `claimed` its direction counts, with every seed; of two positive figures it is the logarithm of
    their ratio. With `claimed` its size counts: within the claim's tolerance of it, or at least it. With
    `harm`, the difference that a codec makes which fails the claim, it has to be at most the tolerance's
    share of that, and the seeds have to tell it from that. Where its size counts, a seed that has diverged
    fails it, whatever the others' mean is; if others have not, the seeds tell nothing. Where its direction
    counts and no seed has a finite difference, they tell it if one side alone is infinite with every seed.
    """

    ours: SeedFigure
    claimed: float | None = None
    is_least: bool = False
    harm: SeedFigure | None = None
    is_ratio: bool = False  # whether `ours` is a logarithm
    of_numbers: bool = False  # whether no figure of a record is in it
    of_itself: bool = False  # whether both sides are of the same cells, as where a foil took the place of one
    null: float = 0.0  # what the figure is without the effect
    falls: bool = False  # whether the effect lowers it
    shown: FigureFormat = PLAIN  # the unit of the figure itself
    misses: str = ""  # with how many seeds both sides reach a target, in words, if a seed misses it

    @property
    def mean(self) -> float:
        return _mean(self.ours)

    @property
    def spread(self) -> float:
        """The standard deviation over paired seeds; zero for figures without chance. Raises MissingError for
        a single seed of others."""
        return 0.0 if self.of_numbers else max(_spread(self.ours), _spread(self.harm) if self.harm else 0.0)

    @property
    def harmed(self) -> float:
        """The mean of what the codec that fails the claim differs."""
        return _mean(self.harm) if self.harm is not None else math.nan

    @property
    def endless(self) -> list[float]:
        """The seeds' values that tell nothing: infinite ones and NaN where a size counts, but for those
        beyond what is claimed; NaN where no seed has a size and a direction counts."""
        values = self.ours.by_seed.values()
        if self.claimed is None and self.harm is None:
            return [] if any(map(math.isfinite, values)) else [each for each in values if math.isnan(each)]
        beyond = -math.inf if self.harm is not None else math.inf if self.is_least else math.nan
        return [value for value in values if not math.isfinite(value) and value != beyond]

    @property
    def vacuous(self) -> bool:
        """Returns whether both sides are the same to the last bit, with every seed."""
        return not any(self.ours.by_seed.values()) and not (self.harm and any(self.harm.by_seed.values()))

    def holds(self, tolerance: float) -> bool:
        """Returns whether the effect is as claimed, whatever its spread."""
        if self.endless:
            return False
        if self.harm is not None:
            return self.mean <= tolerance * self.harmed
        if self.claimed is None:
            return all(value > 0 for value in self.ours.by_seed.values())
        if self.is_least:
            return self.mean >= self.claimed
        return abs(self.mean - self.claimed) <= tolerance * self.claimed

    @property
    def _one_against_others(self) -> bool:
        """Returns whether a single seed of several has a finite value, whose sign not all others share."""
        values = list(self.ours.by_seed.values())
        agree = all(value > 0 for value in values) or all(value < 0 for value in values)
        return len(values) > 1 and sum(map(math.isfinite, values)) == 1 and not agree

    def resolved(self, tolerance: float) -> bool:
        """Returns whether the seeds tell what `holds` says: the effect is twice their spread, and so is what
        an effect lacks that does not hold. None is of a size that is no effect at all."""
        least = RESOLUTION * self.spread
        if len(self.endless) not in (0, len(self.ours.by_seed)) or any(map(math.isnan, self.endless)):
            return False
        if self.claimed is not None and self.claimed <= 0:
            return False
        if self.harm is not None:
            lacking, apart = self.mean - tolerance * self.harmed, self.harm - self.ours
            told = lacking >= least if lacking > 0 else _mean(apart) >= RESOLUTION * _spread(apart)
            return told and self.harmed >= max(least, 1e-300)
        if self.claimed is None:
            if self._one_against_others:
                return False
            return (self.mean if self.holds(tolerance) else -self.mean) >= max(least, 1e-300)
        if self.holds(tolerance):
            return self.mean >= least
        return abs(self.mean - self.claimed) >= least


Effects = tuple[Effect, ...]


def _mean(figure: SeedFigure) -> float:
    finite = [value for value in figure.by_seed.values() if math.isfinite(value)]
    if finite:
        return fmean(finite)
    signs = {value for value in figure.by_seed.values() if not math.isnan(value)}
    return signs.pop() if len(signs) == 1 else 0.0


def _spread(figure: SeedFigure) -> float:
    if len(figure.by_seed) == 1:
        if figure.cells and all(cell.task in EXACT_TASKS for cell in figure.cells):
            return 0.0
        raise MissingError("one seed tells no spread")
    finite = [value for value in figure.by_seed.values() if math.isfinite(value)]
    return stdev(finite) if len(finite) > 1 else 0.0


def _effect(difference: Number, **about: Any) -> Effects:
    of_numbers = not isinstance(difference, SeedFigure)
    ours = difference if isinstance(difference, SeedFigure) else SeedFigure({None: float(difference)})
    return (Effect(ours, of_numbers=of_numbers, **about),)


def below(first: Number, second: Number) -> Effects:
    """The first figure is below the second, with every seed."""
    return _directed(second, first, misses=_misses(first, second))


def above(first: Number, second: Number) -> Effects:
    """The first figure is above the second, with every seed."""
    return _directed(first, second, misses=_misses(first, second))


def _directed(upper: Number, lower: Number, misses: str) -> Effects:
    if not isinstance(upper, SeedFigure) or not isinstance(lower, SeedFigure):
        return _effect(upper - lower, misses=misses)
    own = {(cell.label, cell.id) for cell in upper.cells} == {(cell.label, cell.id) for cell in lower.cells}
    if min(upper.low, lower.low) > 0:
        return _effect(upper.combined(lower, _logarithm), is_ratio=True, misses=misses, of_itself=own)
    return _effect(upper - lower, misses=misses, of_itself=own)


def _misses(first: Number, second: Number) -> str:
    """With how many seeds each figure reaches its target, in words; empty if neither misses it."""
    aimed = [each for each in (first, second) if isinstance(each, SeedFigure) and each.baseline]
    counts = [(sum(map(math.isfinite, each.by_seed.values())), len(each.by_seed)) for each in aimed]
    if all(reached == seeds for reached, seeds in counts):
        return ""
    return "target reached with " + ", against ".join(
        f"{reached} of {seeds} seeds" for reached, seeds in counts
    )


def near(found: Number, printed: float, *, null: Number) -> Effects:
    """A figure is as printed, within the claim's tolerance of its difference to `null`: its value without
    the effect."""
    claimed = printed - _number(null)
    effect = (found - null) * math.copysign(1, claimed)
    return _effect(effect, claimed=abs(claimed), **_about(found, null, falls=claimed < 0))


def at_least(found: Number, least: float, *, null: Number) -> Effects:
    """A figure that is `null` without the effect is at least so large."""
    about = _about(found, null, falls=False)
    return _effect(found - null, claimed=least - _number(null), is_least=True, **about)


def at_most(found: Number, most: float, *, null: Number) -> Effects:
    """A figure that is `null` without the effect is at most so large."""
    about = _about(found, null, falls=True)
    return _effect(null - found, claimed=_number(null) - most, is_least=True, **about)


def _about(found: Number, null: Number, *, falls: bool) -> dict[str, Any]:
    """The figure that an effect is of, for its words."""
    shown = next((each.shown for each in (found, null) if isinstance(each, SeedFigure)), PLAIN)
    return {"null": _number(null), "falls": falls, "shown": shown}


def spared(
    found: SeedFigure, base: SeedFigure, harmed: SeedFigure, *, harm: Literal["falls", "rises", ""] = ""
) -> Effects:
    """A figure stays at `base`: it differs towards `harmed`, the figure of a codec that fails, by at most the
    tolerance's share of what that codec differs. `harm` says in which direction the figure gets worse; empty
    for that of `harmed`."""
    sign = {"falls": -1.0, "rises": 1.0}.get(harm, math.copysign(1.0, _mean(harmed - base)))
    return (Effect((found - base) * sign, harm=(harmed - base) * sign),)


def sooner(evidence: Evidence, factor: float, first: str, second: str) -> Effects:
    """The first codec takes less time than the second to `factor` times the baseline's final metric."""
    return below(evidence.tta(factor, codec=first), evidence.tta(factor, codec=second))


def rises(*values: Number | Iterable[Number]) -> Effects:
    """Each value is above the one before."""
    return every(above(after, before) for before, after in itertools.pairwise(_listed(values, "rises")))


def falls(*values: Number | Iterable[Number]) -> Effects:
    """Each value is below the one before."""
    return every(below(after, before) for before, after in itertools.pairwise(_listed(values, "falls")))


@overload
def every(first: Effects | Iterable[Effects], *more: Effects | Iterable[Effects]) -> Effects: ...
@overload
def every(first: bool | Iterable[bool], *more: bool | Iterable[bool]) -> bool: ...


def every(first: Any, *more: Any) -> bool | Effects:
    """All effects together, or whether all conditions hold, given one by one or by generators.

    They are always evaluated completely, so that a verdict shows all figures, not only the first decisive
    one.
    """
    found = _listed((first, *more), "every")
    if any(isinstance(each, Effect) for each in found):
        if not all(isinstance(each, Effect) for each in found):
            raise TypeError(
                "effects and bare comparisons cannot be mixed: use below, above, near or at_least"
            )
        return tuple(found)
    return all(found)


def close(found: float, target: float, margin: float) -> bool:
    """Returns whether a printed or computed number differs from its target by at most `margin`."""
    return abs(found - target) <= margin


def _logarithm(first: float, second: float) -> float:
    """The logarithm of a ratio of positive numbers; infinite, or NaN, where they are."""
    if math.isinf(first) or math.isinf(second):
        return first - second
    return math.log(first / second)


def _number(value: Number) -> float:
    return _mean(value) if isinstance(value, SeedFigure) else float(value)


def _listed(values: Iterable[Any], name: str) -> list[Any]:
    found: list[Any] = []
    for each in values:
        if isinstance(each, Iterable):
            found += list(each) if isinstance(each, tuple) else _listed(each, name)
        else:
            found.append(each)
    if not found:
        raise MissingError(f"{name} finds no such cells")
    return found
