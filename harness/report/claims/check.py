"""Checks what a predicate speaks of against what sweeps have, before anything is computed."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.harness.report.claims.evaluate import SWEEP
from gradwire.harness.report.claims.figures import CASE, TASK, matching_key, same
from gradwire.harness.report.claims.grammar import PAPER, REDUCING, SELECTING, ClaimError, name_of, targets
from gradwire.harness.report.reference import Reference
from gradwire.harness.report.sweep_record import SweepRecord
from gradwire.harness.timing.measure.metrics import METRICS


@dataclass
class KnownSweep:
    """What cells of a sweep can be asked for, at any size: axes and shared settings with their values,
    metrics."""

    axes: dict[str, list[Any]] = field(default_factory=dict)
    shared: dict[str, list[Any]] = field(default_factory=dict)
    metrics: set[str] = field(default_factory=set)

    def add_axis(self, key: str, values: Sequence[Any]) -> None:
        self.axes.setdefault(key, []).extend(values)

    def add_record(self, record: SweepRecord) -> None:
        """What a record has, the settings that all its cells share among it."""
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
        return KnownSweep(axes, shared, set(self.metrics))

    def key(self, name: str) -> str:
        """The dotted key that a short name means; raises ClaimError if there is none."""
        found = matching_key(name, self.axes, self.shared)
        if found is None:
            raise ClaimError(f"{name} is no axis; there are {', '.join(self.axes) or 'none'}")
        return found

    def values(self, key: str) -> list[Any]:
        return [*self.axes.get(key, ()), *self.shared.get(key, ())]

    def check_value(self, sweep: str, key: str, value: Any) -> None:
        """Raises ClaimError if no cell of the sweep has this value of an axis, whatever the size."""
        found = self.values(key)
        if not any(same(each, value) for each in found):
            known = ", ".join(dict.fromkeys(str(each) for each in found))
            raise ClaimError(f"{sweep} has no {key}={value}; it has {known}")


Known = Mapping[str, KnownSweep]


def check_predicate(tree: ast.expr, sweeps: Sequence[str], known: Known, reference: Reference) -> None:
    """Raises ValueError in one line for functions, metrics, axes, values and printed figures that do not
    exist."""
    _Check(sweeps, known, reference).visit(tree, {})


@dataclass
class _Check:
    sweeps: Sequence[str]
    known: Known
    reference: Reference

    def visit(self, node: ast.AST, bound: dict[str, list[Any] | None]) -> None:
        """`bound`: the values that a name takes in turn; None where only the records tell."""
        if isinstance(node, ast.GeneratorExp):
            for loop in node.generators:
                self.visit(loop.iter, bound)
                bound = bound | _values(loop)
                for condition in loop.ifs:
                    self.visit(condition, bound)
            self.visit(node.elt, bound)
            return
        if isinstance(node, ast.Call):
            self._call(node, bound)
        for child in ast.iter_child_nodes(node):
            self.visit(child, bound)

    def _call(self, call: ast.Call, bound: dict[str, list[Any] | None]) -> None:
        name = name_of(call)
        if name in REDUCING:
            return
        named = {str(each.arg): _possible(each.value, bound) for each in call.keywords}
        if name == PAPER:
            self._printed(call, named, bound)
            return
        (sweep,) = named.pop(SWEEP, None) or self.sweeps[:1] or [None]
        if sweep not in self.sweeps:
            raise ClaimError(f"{name} is of the sweep {sweep}, which the claim does not name")
        found = self.known[str(sweep)]
        self._metric(name, call, found, str(sweep))
        for axis in (
            [each.value for each in call.args if isinstance(each, ast.Constant)] if name == "axis" else ()
        ):
            found.key(str(axis))
        for key, values in named.items():
            if key not in (CASE, TASK):
                for value in values or ():
                    found.check_value(str(sweep), found.key(key), value)
                found.key(key)

    def _metric(self, name: str, call: ast.Call, found: KnownSweep, sweep: str) -> None:
        if name in ("axis", "tta", "stays"):
            return
        metric = name
        if name in SELECTING:
            first = call.args[0] if call.args else None
            metric = str(first.value) if isinstance(first, ast.Constant) else ""
        if metric not in METRICS and metric not in found.metrics:
            raise ClaimError(f"{metric or name} is no metric of {sweep} and no function")

    def _printed(self, call: ast.Call, named: dict[str, Any], bound: Mapping[str, list[Any] | None]) -> None:
        if len(call.args) != 1 or not isinstance(call.args[0], ast.Constant):
            raise ClaimError(f'{PAPER} takes an item such as "dynamiq/table4", then columns')
        item, choices = (
            str(call.args[0].value),
            {key: values for key, values in named.items() if values is not None},
        )
        self.reference.find(item)
        for key, values in choices.items():
            for value in values:
                self.reference.find(item, **{key: str(value)})
        if all(values is not None and len(values) == 1 for values in named.values()):
            self.reference.number(item, **{key: str(values[0]) for key, values in named.items()})


def _values(loop: ast.comprehension) -> dict[str, list[Any] | None]:
    """The values that a `for` over a written tuple gives its names."""
    names = targets(loop.target)
    if not isinstance(loop.iter, ast.Tuple | ast.List):
        return dict.fromkeys(names, None)
    if not isinstance(loop.target, ast.Tuple):
        return {names[0]: [each.value for each in loop.iter.elts if isinstance(each, ast.Constant)]}
    rows = [each.elts for each in loop.iter.elts if isinstance(each, ast.Tuple | ast.List)]
    if any(len(row) != len(names) for row in rows):
        raise ClaimError(f"a `for` gives {', '.join(names)} other than {len(names)} values")
    columns = zip(*rows, strict=True)
    return {
        name: [each.value for each in column if isinstance(each, ast.Constant)]
        for name, column in zip(names, columns, strict=True)
    }


def _possible(node: ast.expr, bound: Mapping[str, list[Any] | None]) -> list[Any] | None:
    """The values that an argument may have; None where only the records tell."""
    if isinstance(node, ast.Constant):
        return [node.value]
    return bound.get(node.id) if isinstance(node, ast.Name) else None
