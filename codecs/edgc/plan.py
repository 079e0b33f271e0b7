"""What EDGC has decided: whether gradients are compressed, and to what rank each shape of matrices in each
stage. A `Plan` is a decision in typed form.

A decision is the same on all ranks of all stages, so that it can be logged, kept and replayed as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from gradwire.codecs.decided import Numbers
from gradwire.codecs.interface import Decision


@dataclass(frozen=True)
class Control:
    """The matrices of one shape in one stage: `count` of them, compressed to `rank`.

    `entropy` [nats] and `zeros`, the share of exact zeros, are the means of their latest window. A rank is
    chosen so that the error stays what it was with `reference_rank` at `reference_entropy`. An entropy is −∞
    as long as it is not known.
    """

    stage: int
    rows: int
    columns: int
    count: int
    rank: int
    entropy: float
    zeros: float
    reference_rank: int
    reference_entropy: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def numel(self) -> int:
        return self.rows * self.columns * self.count


@dataclass(frozen=True)
class Plan:
    """What a step follows.

    `max_rank` is that of the run, 0 until it is known. The times come from the clock, where ranks follow it:
    a model `seconds_per_rank`·r + `seconds` of the communication of the first stage, its mean error
    `model_error` relative to what was measured, the time `uncompressed_s` of uncompressed gradients, and
    `backward_s`, the mean time of a micro-batch backward through a stage. Without a clock they are 0.
    """

    compressing: int = 0
    max_rank: int = 0
    seconds_per_rank: float = 0.0
    seconds: float = 0.0
    model_error: float = 0.0
    uncompressed_s: float = 0.0
    backward_s: float = 0.0
    controls: tuple[Control, ...] = ()

    def decision(self) -> Decision:
        """As numbers and lists of numbers by name."""
        found: dict[str, float | Sequence[float]] = {
            field.name: getattr(self, field.name) for field in _NUMBERS
        }
        return found | {name: [getattr(each, name) for each in self.controls] for name in _COLUMNS}

    @classmethod
    def of(cls, decision: Decision) -> Plan:
        """What `decision` has made a decision of."""
        values = cast(Mapping[str, Any], decision)
        rows = zip(*(values[name] for name in _COLUMNS), strict=True)
        controls = tuple(Control(**dict(zip(_COLUMNS, row, strict=True))) for row in rows)
        return cls(**{field.name: values[field.name] for field in _NUMBERS}, controls=controls)

    def rank(self, stage: int, shape: tuple[int, int]) -> int:
        """What matrices of a shape are compressed to; 0 if they go uncompressed."""
        if not self.compressing:
            return 0
        return next((each.rank for each in self.controls if (each.stage, each.shape) == (stage, shape)), 0)

    def figures(self) -> dict[str, float]:
        """What is worth logging. A stage's rank is that of the shape with the most coordinates, its entropy
        and its share of zeros the means over its coordinates."""
        found: dict[str, float] = {"compressing": self.compressing, "max_rank": self.max_rank}
        if self.seconds_per_rank:
            found |= {"seconds_per_rank": self.seconds_per_rank, "model_error": self.model_error}
        for stage in sorted({each.stage for each in self.controls}):
            own = [each for each in self.controls if each.stage == stage]
            known = [each for each in own if each.entropy > float("-inf")]
            if self.compressing:
                found[f"rank_{stage}"] = max(own, key=lambda each: each.numel).rank
            if known:
                total = sum(each.numel for each in known)
                found[f"entropy_{stage}"] = sum(each.numel * each.entropy for each in known) / total
            total = sum(each.numel for each in own)
            found[f"zeros_{stage}"] = sum(each.numel * each.zeros for each in own) / total
        return found


_NUMBERS = tuple(field for field in fields(Plan) if field.name != "controls")
_COLUMNS = tuple(field.name for field in fields(Control))

_NATS = Numbers(-1000, 1000, unknown=True)
_RANKS = Numbers(0, 65_536, whole=True)
_SECONDS = Numbers(-1e12, 1e12, listed=False)
_COUNTS = Numbers(1, 2**53, whole=True)

NUMBERS: Mapping[str, Numbers] = {
    "compressing": Numbers(0, 1, whole=True, listed=False),
    "max_rank": Numbers(0, 65_536, whole=True, listed=False),
    **dict.fromkeys(("seconds_per_rank", "seconds", "model_error", "uncompressed_s", "backward_s"), _SECONDS),
    "stage": Numbers(0, 1023, whole=True),
    **dict.fromkeys(("rows", "columns", "count"), _COUNTS),
    **dict.fromkeys(("rank", "reference_rank"), _RANKS),
    **dict.fromkeys(("entropy", "reference_entropy"), _NATS),
    "zeros": Numbers(0, 1),
}
"""What a decision may say."""


def wrong_with(decision: Decision) -> str | None:
    """Why a decision, whose numbers `NUMBERS` allow, is no plan; None if it is one."""
    lengths = {name: len(cast(Sequence[float], decision[name])) for name in _COLUMNS}
    if len({*lengths.values()}) > 1:
        return (
            f"its lists are of different lengths: {', '.join(f'{name} {n}' for name, n in lengths.items())}"
        )
    if decision["compressing"] and not lengths["rank"]:
        return "it compresses, but has no rank"
    return None
