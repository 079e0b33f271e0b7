"""The file tree in architecture.md is that of the repository."""

from __future__ import annotations

import re
from pathlib import Path

from keys import FOLDERS
from pages import ROOT, blocks

from gradwire.codecs.registry import OWN

*_, TREE = (block.text for block in blocks(ROOT / "docs" / "architecture.md") if block.language == "text")


def folders(parent: Path) -> list[str]:
    """Folders with sources: a folder whose files have moved may still have their bytecode."""
    return sorted(path.name for path in parent.iterdir() if any(path.rglob("*.py")))


def test_every_folder_and_module_is_in_the_tree() -> None:
    """A codec's own file or folder need not be: the registry has its place."""
    named = {f"{name}/" for name in FOLDERS}
    for package in ("codecs", "harness"):
        named |= {f"{name}/" for name in folders(ROOT / package)}
        modules = (ROOT / package).glob("*.py")
        named |= {path.name for path in modules if not path.stem.endswith(("__init__", "_compiled"))}
    own = {re.split("[.:]", entry.place)[0] for entry in OWN.values()}
    assert sorted(named - words() - {f"{name}.py" for name in own} - {f"{name}/" for name in own}) == []


def test_the_tree_names_nothing_else() -> None:
    everything = {"run.py", *(f"{name}/" for name in FOLDERS)}
    for folder in FOLDERS:
        everything |= {path.name + "/" * path.is_dir() for path in (ROOT / folder).rglob("*")}
    assert sorted(words() - everything) == []


def words() -> set[str]:
    """Names of folders, with a slash behind them, and of modules."""
    return set(re.findall(r"\w+\.py|\w+/", TREE))


def test_each_way_through_the_code_is_short() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split("## Four ways through the code\n")[1].split("\n## ")[0]
    ways = [way.strip().splitlines() for way in section.strip().split("\n\n")]
    assert [way[0].split(".**")[0] for way in ways] == [
        "**A gradient",
        "**A message",
        "**A configuration key",
        "**A row",
    ]
    assert all(len(way) < 15 for way in ways)
