"""The language of predicates: a small part of Python's expressions, parsed and never executed.

`parse` accepts the nodes listed here and refuses every other one. A predicate can select figures, calculate
with them, compare them and count; it has no attributes, no subscripts, and no calls but of the functions that
docs/report.md lists.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from typing import Any

from gradwire.harness.files.reading import printable

MOST_CHARACTERS = 1500
MOST_NODES = 400

Number = float | bool

EXPRESSIONS = (
    *(ast.Expression, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.GeneratorExp),
    *(ast.Constant, ast.Name, ast.Tuple, ast.List, ast.keyword, ast.comprehension, ast.Load, ast.Store),
)
OPERATORS = (
    *(ast.And, ast.Or, ast.Not, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow),
    *(ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq),
)

SELECTING = ("figure", "tta", "stays", "last", "during", "axis")
"""Functions that select figures or values of a sweep by axes, as every metric's name does."""

REDUCING = (
    *("all", "any", "count", "rises", "falls", "exponent", "line_error", "min", "max", "median"),
    *("low", "high", "mean", "margin", "below", "above", "abs", "log2", "sqrt", "ceil"),
)
"""Functions of figures and numbers."""

PAPER = "paper"
"""The function that takes a printed figure."""

NAMES = {"inf": float("inf")}


class ClaimError(ValueError):
    """A claim that is malformed or speaks of what does not exist; the text is one line."""


def parse(text: str) -> ast.expr:
    """The tree of a predicate; raises ClaimError in one line for what the language does not have."""
    if len(text) > MOST_CHARACTERS:
        raise ClaimError(f"the predicate has {len(text)} characters, more than {MOST_CHARACTERS}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ClaimError(f"{printable(text, 80)} is no predicate ({what})") from None
    nodes = list(ast.walk(tree))
    if len(nodes) > MOST_NODES:
        raise ClaimError(f"the predicate has more than {MOST_NODES} parts")
    for node in nodes:
        _check(node)
    _check_names(tree.body, frozenset())
    return tree.body


def calls(tree: ast.expr) -> Iterator[ast.Call]:
    """Every call in a tree."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def name_of(call: ast.Call) -> str:
    """The name that is called."""
    assert isinstance(call.func, ast.Name)
    return call.func.id


def shown(node: ast.AST, bound: dict[str, Any]) -> str:
    """A part of a predicate as text, with the values of its bound names."""
    if isinstance(node, ast.Name) and node.id in bound:
        return f'"{bound[node.id]}"' if isinstance(bound[node.id], str) else str(bound[node.id])
    if isinstance(node, ast.Call):
        parts = [shown(argument, bound) for argument in node.args]
        parts += [f"{keyword.arg}={shown(keyword.value, bound)}" for keyword in node.keywords]
        return f"{name_of(node)}({', '.join(parts)})"
    return ast.unparse(node).replace("'", '"')


def _check(node: ast.AST) -> None:
    if not isinstance(node, EXPRESSIONS + OPERATORS):
        raise ClaimError(f"{_text(node)}: {type(node).__name__} is not part of the language of predicates")
    if isinstance(node, ast.Constant) and not isinstance(node.value, bool | int | float | str):
        raise ClaimError(f"{_text(node)} is no number and no text")
    if isinstance(node, ast.Constant) and isinstance(node.value, float) and math.isinf(node.value):
        raise ClaimError("a number is too large for 64 bits; write inf for what is never reached")
    if isinstance(node, ast.Call) and (
        not isinstance(node.func, ast.Name) or any(keyword.arg is None for keyword in node.keywords)
    ):
        raise ClaimError(f"{_text(node)}: only functions by name can be called, with plain arguments")
    if isinstance(node, ast.comprehension) and node.is_async:
        raise ClaimError("async is not part of the language of predicates")


def _check_names(node: ast.AST, bound: frozenset[str]) -> None:
    """Refuses names that no `for` has bound."""
    if isinstance(node, ast.GeneratorExp):
        for each in node.generators:
            _check_names(each.iter, bound)
            bound |= frozenset(targets(each.target))
            for condition in each.ifs:
                _check_names(condition, bound)
        _check_names(node.elt, bound)
        return
    if isinstance(node, ast.Name) and node.id not in bound and node.id not in NAMES:
        raise ClaimError(f"{node.id} is no function's call, and no `for` gives it a value")
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Call) and child is node.func):
            _check_names(child, bound)


def targets(node: ast.expr) -> Sequence[str]:
    """The names that a `for` binds: one, or several at once."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    if len(names) != len(parts):
        raise ClaimError(f"{_text(node)}: a `for` binds names")
    return names


def _text(node: ast.AST) -> str:
    try:
        return printable(ast.unparse(node), 60)
    except Exception:  # of what is no expression
        return type(node).__name__
