"""Python of the documentation compiles, and names what gradwire has, with the arguments it takes."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from collections.abc import Iterator

import pytest
from pages import PAGES, PYTHON, ROOT, Block, blocks, name, prose, spans

import gradwire
from gradwire.codecs.registry import codec_classes

BLOCKS = [block for page in PAGES for block in blocks(page) if block.language in PYTHON]

COMMON = ("exclude", "ef", "decisions")
"""The arguments that every codec takes besides its own fields."""


def faults(source: str) -> list[str]:
    """The faults of a block, one line each."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    return [*_imports(tree), *(fault for node in ast.walk(tree) for fault in _names(node))]


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradwire"):
            yield from (fault for found in node.names for fault in _missing(f"{node.module}.{found.name}"))


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("gradwire."):
        yield from _missing(ast.unparse(node))
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("gradwire.attach", "gradwire.make_codec"):
        yield from _arguments(node)


def _missing(dotted: str) -> Iterator[str]:
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        yield f"{dotted}: no such name"


def _arguments(call: ast.Call) -> Iterator[str]:
    function = pkgutil.resolve_name(ast.unparse(call.func))
    own = inspect.signature(function).parameters
    given = {word.arg: word.value for word in call.keywords if word.arg is not None}
    positional = dict(zip(own, call.args, strict=False))
    named = (given | positional).get("codec" if "codec" in own else "name")
    codec = named.value if isinstance(named, ast.Constant) else "dynamiq"
    if codec not in codec_classes():
        yield f"{codec}: no such codec"
        return
    fields = inspect.signature(codec_classes()[str(codec)]).parameters
    yield from (
        f"{ast.unparse(call.func)}({word}=…): no such argument"
        for word in given
        if word not in {*own, *fields, *COMMON}
    )


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{name(block.page)}:{block.line}")
def test_blocks_of_python_name_what_there_is(block: Block) -> None:
    assert faults(block.text) == []


@pytest.mark.parametrize(
    "planted",
    [
        "gradwire.attach(model, codec='dynamic')",
        "gradwire.attach(model, codec='dynamiq', bitz=4)",
        "gradwire.attach(model, 'topk', bits=4)",
        "gradwire.make_codec('dynamiq', bitz=4)",
        "gradwire.atach(model)",
        "from gradwire import atach",
        "from gradwire.harness.nothing import at_all",
        "model = (",
    ],
)
def test_planted_mistakes_are_found(planted: str) -> None:
    assert faults(planted)
    assert not faults("import gradwire\ngradwire.attach(model, codec='dynamiq', bits=4, ef=True, seed=1)")


def test_the_reference_has_every_name_and_every_argument() -> None:
    api = ROOT / "docs" / "api.md"
    exported, _, members = prose(api).partition("## Synchronizer")
    rows = [line for line in exported.partition("## attach")[0].splitlines() if line.startswith("| `")]
    assert {next(spans(row)) for row in rows} == set(gradwire.__all__)
    cells = [line.split(" | ")[0] for line in members.splitlines() if line.startswith("| `")]
    named = {span.partition("(")[0] for cell in cells for span in spans(cell)}
    own = [each for each in gradwire.Synchronizer.__mro__ if each.__module__.startswith("gradwire")]
    there = {name for each in own for name in (*vars(each), *vars(each).get("__annotations__", ()))}
    assert named == {member for member in there if not member.startswith("_")}
    nodes = [node for block in blocks(api) for node in ast.walk(ast.parse(block.text))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    shown = {
        word.arg for call in calls if ast.unparse(call.func) == "gradwire.attach" for word in call.keywords
    }
    taken = inspect.signature(gradwire.attach).parameters.values()
    assert {one.name for one in taken if one.kind is not one.VAR_KEYWORD} - shown == {"model"}
