"""Sweeps as they can be asked for: the axes, settings and metrics that their cells may have at any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.harness.report.claims.figures import matching_key, same
from gradwire.harness.report.sweep_record import SweepRecord


@dataclass(frozen=True)
class Planned:
    """The cells of a sweep at one size: its task, its models, and the values by dotted key, without seeds and
    what is taken from other sweeps."""

    task: str
    models: tuple[str, ...]
    cells: tuple[Mapping[str, Any], ...]


@dataclass
class KnownSweep:
    """The cells that a sweep may have at any size: axes and shared settings with their values, and
    metrics. `sizes` has what it runs at each size.
    """

    axes: dict[str, list[Any]] = field(default_factory=dict)
    shared: dict[str, list[Any]] = field(default_factory=dict)
    metrics: set[str] = field(default_factory=set)
    sizes: dict[str, Planned] = field(default_factory=dict)

    def add_axis(self, key: str, values: Sequence[Any]) -> None:
        self.axes.setdefault(key, []).extend(values)

    def add_record(self, record: SweepRecord) -> None:
        """Adds the axes, settings and metrics of a record."""
        for cell in record.cells:
            for key, value in cell.axes.items():
                self.add_axis(key, [value])
        for settings in record.settings.values():
            for key, value in settings.items():
                self.shared.setdefault(key.removesuffix(".name"), []).append(value)
        self.metrics |= {value.metric for value in record.values}

    def copy(self) -> KnownSweep:
        axes, shared = (
            {key: [*values] for key, values in found.items()} for found in (self.axes, self.shared)
        )
        return KnownSweep(axes, shared, set(self.metrics), dict(self.sizes))

    def key(self, name: str) -> str:
        """The dotted key for a short name; raises ValueError if there is none."""
        found = matching_key(name, self.axes, self.shared)
        if found is None:
            raise ValueError(f"{name} is not an axis; there are {', '.join(self.axes) or 'none'}")
        return found

    def check_value(self, sweep: str, name: str, value: Any) -> None:
        """Raises ValueError if no cell of the sweep has this value of an axis, whatever the size."""
        key = self.key(name)
        found = [*self.axes.get(key, ()), *self.shared.get(key, ())]
        if not any(same(each, value) for each in found):
            known = ", ".join(dict.fromkeys(str(each) for each in found))
            raise ValueError(f"{sweep} has no {key}={value}; it has {known}")


Known = Mapping[str, KnownSweep]
