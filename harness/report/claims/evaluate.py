"""Evaluates a parsed predicate on sweeps' records, and keeps the figures that it has used."""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from gradwire.codecs.arithmetic.line_fit import fit_line
from gradwire.harness.report.claims import figures
from gradwire.harness.report.claims.figures import Figure
from gradwire.harness.report.claims.grammar import (
    NAMES,
    PAPER,
    REDUCING,
    SELECTING,
    ClaimError,
    name_of,
    shown,
    targets,
)
from gradwire.harness.report.reference import Reference
from gradwire.harness.report.sweep_record import SweepRecord

SWEEP = "sweep"
"""The argument of a figure that is of another sweep than the claim's first one."""

Bound = dict[str, Any]

_ARITHMETIC: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: lambda base, exponent: math.pow(base, exponent),
    ast.Div: lambda above, below: (
        above / below if below else math.nan if not above else math.copysign(math.inf, above)
    ),
}
_COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_OF_NUMBERS: Mapping[str, Callable[[float], float]] = {
    "abs": abs,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "ceil": math.ceil,
}


@dataclass(frozen=True)
class Used:
    """One figure that a predicate has asked for, as it was written there."""

    text: str
    figure: Figure | float  # a number is printed in the paper


@dataclass
class Evaluation:
    """The evaluation of one predicate; `used` fills as it goes on."""

    records: Mapping[str, SweepRecord]  # the first one is meant where no sweep is named
    reference: Reference
    used: list[Used] = field(default_factory=list)

    def holds(self, tree: ast.expr) -> bool:
        """Whether the predicate is true.

        Raises ClaimError if it is malformed, MissingError or UnfinishedError if the records lack a figure.
        """
        try:
            found = self._value(tree, {})
        except (ArithmeticError, TypeError, ValueError) as error:
            if isinstance(error, ClaimError):
                raise
            raise ClaimError(f"{shown(tree, {})[:80]} cannot be computed ({error})") from None
        if not isinstance(found, bool):
            raise ClaimError("the predicate is neither true nor false: compare something")
        return found

    def _value(self, node: ast.expr, bound: Bound) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return bound[node.id] if node.id in bound else NAMES[node.id]
            case ast.Tuple() | ast.List():
                return tuple(self._value(each, bound) for each in node.elts)
            case ast.BoolOp():
                every = isinstance(node.op, ast.And)
                found = [_truth(self._value(each, bound)) for each in node.values]  # all, for their figures
                return all(found) if every else any(found)
            case ast.UnaryOp(op=ast.Not()):
                return not _truth(self._value(node.operand, bound))
            case ast.UnaryOp():
                return _arithmetic(ast.Mult, self._value(node.operand, bound), -1.0)
            case ast.BinOp():
                return _arithmetic(
                    type(node.op), self._value(node.left, bound), self._value(node.right, bound)
                )
            case ast.Compare():
                values = [_plain(self._value(each, bound)) for each in (node.left, *node.comparators)]
                pairs = zip(node.ops, itertools.pairwise(values), strict=True)
                return all(_COMPARISONS[type(op)](*pair) for op, pair in pairs)
            case ast.GeneratorExp():
                return tuple(self._value(node.elt, each) for each in self._bindings(node.generators, bound))
            case ast.Call():
                return self._called(node, bound)
        raise ClaimError(f"{shown(node, bound)} cannot stand here")

    def _bindings(self, loops: Sequence[ast.comprehension], bound: Bound) -> Iterator[Bound]:
        if not loops:
            yield bound
            return
        first, *rest = loops
        items = self._value(first.iter, bound)
        if not isinstance(items, tuple):
            raise ClaimError(f"{shown(first.iter, bound)} is nothing to go through; use axis(...) or a tuple")
        names = targets(first.target)
        for item in items:
            parts = item if isinstance(first.target, ast.Tuple) else (item,)
            inner = bound | dict(zip(names, parts, strict=True))
            if all(_truth(self._value(condition, inner)) for condition in first.ifs):
                yield from self._bindings(rest, inner)

    def _called(self, call: ast.Call, bound: Bound) -> Any:
        name = name_of(call)
        arguments = [self._value(each, bound) for each in call.args]
        named = {str(each.arg): self._value(each.value, bound) for each in call.keywords}
        if name in REDUCING:
            if named:
                raise ClaimError(f"{name} takes no axes")
            return _reduced(name, arguments)
        text = shown(call, bound)
        if name == PAPER:
            found: Figure | float = self.reference.number(*arguments, **named)
            text = _printed(*arguments, *named.values())
        elif name == "axis":
            return self._axis(arguments, named)
        else:
            found = self._selected(name, arguments, named)
        self.used.append(Used(text, found))
        return found

    def _selected(self, name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Figure:
        record, selection = self._record(named)
        match name, *arguments:
            case "figure", str() as metric:
                return figures.one_figure(record, metric, selection)
            case "last", str() as metric:
                return figures.last(record, metric, selection)
            case "during", str() as metric, int() | float() as begin, int() | float() as end:
                return figures.during(record, metric, begin, end, selection)
            case "tta", int() | float() as factor:
                return figures.tta(record, factor, selection)
            case "stays", int() | float() as factor:
                return figures.stays(record, factor, selection)
            case (metric,) if metric not in SELECTING:
                return figures.one_figure(record, metric, selection)
        raise ClaimError(f"{name} does not take {', '.join(map(str, arguments)) or 'nothing'}")

    def _axis(self, keys: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        record, selection = self._record(named)
        found = [figures.axis_named(record, str(key)) for key in keys]
        values = figures.values_of_axes(record, found, selection)
        return tuple(values) if len(found) > 1 else tuple(value for (value,) in values)

    def _record(self, named: Mapping[str, Any]) -> tuple[SweepRecord, dict[str, Any]]:
        selection = dict(named)
        sweep = selection.pop(SWEEP, None) or next(iter(self.records), None)
        if sweep is None or sweep not in self.records:
            raise ClaimError(f"{sweep or 'a figure'} is of no sweep that the claim names")
        return self.records[str(sweep)], selection


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ClaimError("and, or, not, all, any and if take comparisons")
    return value


def _plain(value: Any) -> Any:
    return value.median if isinstance(value, Figure) else value


def _arithmetic(kind: type, left: Any, right: Any) -> Figure | float:
    operation = _ARITHMETIC[kind]
    if isinstance(left, Figure):
        return left.combined(right if isinstance(right, Figure) else float(right), operation)
    if isinstance(right, Figure):
        return right.combined(float(left), lambda own, other: operation(other, own))
    numbers = float(left), float(right)
    if kind is ast.Div and not numbers[1]:  # of figures a quotient by 0 is infinite, as a miss is
        raise ZeroDivisionError("division by 0")
    found = operation(*numbers)
    if math.isfinite(numbers[0]) and math.isfinite(numbers[1]) and not math.isfinite(found):
        raise OverflowError("a number too large for 64 bits")
    return found


def _reduced(name: str, arguments: Sequence[Any]) -> Any:
    """The value of a function of figures and numbers."""
    if not arguments:
        raise ClaimError(f"{name} has nothing to look at")
    items = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], tuple) else tuple(arguments)
    if not items:
        raise figures.MissingError(f"{name} finds no such cells")
    if name in ("all", "any", "count"):
        found = [_truth(item) for item in items]
        return {"all": all(found), "any": any(found), "count": sum(found)}[name]
    if name in ("below", "above"):
        return _paired(name, items)
    if name == "exponent":
        return _exponent([(float(_plain(x)), float(_plain(y))) for x, y in items])
    if name == "line_error":
        return _line_error([(float(_plain(x)), float(_plain(y))) for x, y in items])
    if name in ("median", "low", "high") and len(items) == 1 and isinstance(items[0], Figure):
        return float(getattr(items[0], name))
    if name in ("mean", "margin"):
        if len(items) != 1 or not isinstance(items[0], Figure):
            raise ClaimError(f"{name} takes one figure")
        return items[0].interval[1] if name == "margin" else fmean(items[0].by_seed.values())
    numbers = [float(_plain(item)) for item in items]
    if name in ("rises", "falls"):
        step = operator.lt if name == "rises" else operator.gt
        return all(step(before, after) for before, after in itertools.pairwise(numbers))
    if name in _OF_NUMBERS and len(numbers) == 1:
        return float(_OF_NUMBERS[name](numbers[0]))
    if name in ("min", "max", "median"):
        return {"min": min(numbers), "max": max(numbers), "median": median(numbers)}[name]
    raise ClaimError(f"{name} does not take {len(numbers)} values")


def _paired(name: str, items: Sequence[Any]) -> bool:
    """Whether the first figure is below (above) the second in every seed that both have; these have to be two
    or more, the least that a paired test can be made of."""
    if len(items) != 2 or not all(isinstance(item, Figure) for item in items):
        raise ClaimError(f"{name} takes two figures")
    first, second = items
    pairs = first.paired(second).values()
    if len(pairs) < 2:
        raise figures.MissingError(f"{name} takes two or more seeds")
    better = operator.lt if name == "below" else operator.gt
    return all(better(*pair) for pair in pairs)


def _exponent(points: Sequence[tuple[float, float]]) -> float:
    """The exponent p of y ~ x^p, by least squares on logarithms."""
    if len(points) < 2 or min(min(point) for point in points) <= 0:
        raise figures.MissingError("an exponent takes two or more points of positive numbers")
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(axis) / len(logs) for axis in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    if not spread:
        raise figures.MissingError("an exponent takes points at different places")
    return float(sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread)


def _line_error(points: Sequence[tuple[float, float]]) -> float:
    """The mean relative error of the line through the points, by least squares."""
    try:
        return fit_line(points).error
    except ValueError as error:
        raise figures.MissingError(str(error)) from None


def _printed(item: str, *columns: object) -> str:
    """`Table 3, MXFP8, LLaMA 1B`: where a printed figure stands."""
    place = re.sub(
        r"^(table|figure)(\d+)$", lambda found: f"{found[1].title()} {found[2]}", item.split("/")[-1]
    )
    return ", ".join([place.replace("figures_text", "text"), *map(str, columns)])
