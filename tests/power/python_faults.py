"""Faults to put into Python sources, one at a time: the mistakes that a programmer makes, drawn at random.

Only code in functions is touched. What is executed at import is executed by every test, so that it would say
little about which of them look at it.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "*",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Fault:
    """A stretch of a source file, in bytes from `start` to `end`, and what takes its place."""

    path: str  # relative to the root of the repository
    function: str
    line: int
    statement: int  # the line that the innermost statement on a line of its own begins with
    kind: str
    start: int
    end: int
    text: str

    def put_into(self, source: bytes) -> bytes:
        """The source with this fault."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def describe(self, source: bytes) -> str:
        """The fault's place, the original text and the new one, on one line."""
        before = " ".join(source[self.start : self.end].decode().split())
        now = " ".join(self.text.split())
        return f"{self.path}:{self.line} {self.function}, {self.kind}: {before[:80]}  ->  {now[:80]}"


class _Finder:
    """The candidates of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._source = path, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def find(self) -> Iterator[Fault]:
        tree = ast.parse(self._source)
        for node in ast.walk(tree):
            if isinstance(node, Function):
                for statement in node.body:
                    yield from self._within(statement, node.name, statement.lineno)

    def _within(self, node: ast.AST, function: str, statement: int) -> Iterator[Fault]:
        """Candidates in this node and below. Functions inside it are found by themselves."""
        if isinstance(node, (Function, ast.ClassDef, ast.Lambda, ast.JoinedStr)) or _is_for_types(node):
            return
        if isinstance(node, ast.stmt) and self._begins_its_line(node):
            statement = node.lineno
        for kind, place, text in self._faults_of(node):
            start, end = self._span(place)
            yield Fault(self._path, function, place.lineno, statement, kind, start, end, text)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._within(child, function, statement)

    def _faults_of(self, node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
        match node:
            case ast.Compare(ops=[operation], comparators=[right]):
                other = COMPARISONS[type(operation)]
                yield "comparison", node, f"({self._text(node.left)} {other} {self._text(right)})"
            case ast.BoolOp(op=operation, values=values):
                word = " or " if isinstance(operation, ast.And) else " and "
                yield "and, or", node, "(" + word.join(f"({self._text(value)})" for value in values) + ")"
            case ast.BinOp(op=operation) if type(operation) in ARITHMETIC:
                left, right = self._text(node.left), self._text(node.right)
                yield "arithmetic", node, f"(({left}) {ARITHMETIC[type(operation)]} ({right}))"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield "not", node, f"({self._text(operand)})"
            case ast.Constant(value=bool(value)):
                yield "truth", node, str(not value)
            case ast.Constant(value=int(value)):
                yield "number", node, str(value + 1)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield "condition", test, f"(not ({self._text(test)}))"
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield "result", value, "None"
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.AugAssign():
                yield "left out", node, "pass"

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _span(self, node: ast.AST) -> tuple[int, int]:
        first, last = (self._starts[n - 1] for n in (node.lineno, node.end_lineno))  # type: ignore[attr-defined]
        return first + node.col_offset, last + node.end_col_offset  # type: ignore[attr-defined]

    def _begins_its_line(self, node: ast.stmt) -> bool:
        """False for `elif`, before which nothing can be put."""
        start, _ = self._span(node)
        line = self._source[self._starts[node.lineno - 1] : start]
        return not line.strip() and self._source[start : start + 4] != b"elif"


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def candidates(root: Path, folders: Sequence[str]) -> list[Fault]:
    """Every fault that can be put into the Python files of these folders."""
    return [
        fault
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
        for fault in _Finder(str(path.relative_to(root)), path.read_bytes()).find()
    ]


def draw(faults: Sequence[Fault], number: int, seed: int) -> list[Fault]:
    """`number` faults, no two in one function. Long functions are likelier, kinds equally likely."""
    rng = random.Random(seed)
    drawn: dict[tuple[str, str], Fault] = {}
    left = list(faults)
    rng.shuffle(left)
    by_function: dict[tuple[str, str], list[Fault]] = {}
    for fault in left:
        by_function.setdefault((fault.path, fault.function), []).append(fault)
    for fault in left:
        key = fault.path, fault.function
        if key not in drawn:
            kind = rng.choice(sorted({other.kind for other in by_function[key]}))
            drawn[key] = next(other for other in by_function[key] if other.kind == kind)
        if len(drawn) == number:
            break
    return list(drawn.values())


def mark(source: bytes, faults: Sequence[tuple[int, Fault]]) -> bytes:
    """The source with a call before each fault's statement that reports the fault's number."""
    lines = source.splitlines(keepends=True)
    for number, fault in sorted(faults, key=lambda each: -each[1].statement):
        line = lines[fault.statement - 1]
        indentation = line[: len(line) - len(line.lstrip())]
        lines.insert(fault.statement - 1, indentation + b"__gradwire_hit__(%d)\n" % number)
    return b"".join(lines)
