"""What the sources say of a dataclass's fields: the comment beside or above one, or the text below it."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Mapping
from functools import lru_cache


@lru_cache(maxsize=256)
def help_of(schema: type) -> Mapping[str, str]:
    """Field to help, on one line each; inherited fields included, and '' where the source says nothing."""
    found: dict[str, str] = {}
    for owner in reversed(schema.__mro__):
        found |= _help_in(owner) if "__annotations__" in vars(owner) else {}
    return found


def _help_in(owner: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except (OSError, TypeError):  # made at run time, or without its source
        return {}
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    comments = _comments(source)
    code = {line for node in tree.body for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    found = {}
    for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        said = [comments[line] for line in lines if line in comments]
        above = node.lineno - 1
        while above in comments and above not in code:
            said.insert(0, comments[above])
            above -= 1
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            said.append(str(below.value.value))
        found[node.target.id] = " ".join(" ".join(said).split())
    return found


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: token.string.lstrip("# ")
        for token in tokens
        if token.type == tokenize.COMMENT and "noqa" not in token.string
    }
