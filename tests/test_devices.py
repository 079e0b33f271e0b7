"""A script's `torch.set_default_device` does not move the library's tensors: each is made on an explicit
device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from torch.utils._device import _device_constructors

ROOT = Path(__file__).resolve().parent.parent
IN_SCRIPTS = ("codecs", "harness/comm", "harness/library", "harness/parallel")
"""The packages that run in the processes of users' scripts."""
MAKERS = {maker.__name__ for maker in _device_constructors()}


def without_device(source: str) -> Iterator[str]:
    """The calls that make a tensor wherever the script says."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MAKERS:
            of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            if of_torch and not any(keyword.arg in ("device", None) for keyword in node.keywords):
                yield f"line {node.lineno}: {ast.unparse(node)}"


def test_whoever_makes_a_tensor_names_the_device() -> None:
    files = [path for folder in IN_SCRIPTS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 100
    found = {path: [*without_device(path.read_text())] for path in files}
    assert {str(path): calls for path, calls in found.items() if calls} == {}


def test_calls_without_a_device_are_found() -> None:
    source = "torch.zeros(3)\ntorch.zeros(3, device='cpu')\ntorch.tensor([1])\ntorch.zeros_like(x)\n"
    assert [*without_device(source)] == ["line 1: torch.zeros(3)", "line 3: torch.tensor([1])"]
