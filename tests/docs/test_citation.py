"""CITATION.cff says of the software what pyproject.toml says, and of the papers what the docs say."""

from __future__ import annotations

import re
import tomllib

import yaml
from pages import ROOT

CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
REQUIRED = {"cff-version", "message", "title", "authors"}
"""The fields that version 1.2.0 of the format requires of every file."""


def test_it_names_this_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert CITATION.keys() >= REQUIRED
    assert (CITATION["cff-version"], CITATION["type"]) == ("1.2.0", "software")
    assert (CITATION["title"], CITATION["version"]) == (project["name"], project["version"])


def test_its_papers_are_those_that_gradwire_implements() -> None:
    """The first list of docs/references.md: the short name in bold, the authors, the title in italics."""
    text = (
        (ROOT / "docs" / "references.md")
        .read_text()
        .partition("## Papers")[2]
        .partition("The other codecs")[0]
    )
    entries = [" ".join(entry.split()) for entry in re.split(r"^- ", text, flags=re.MULTILINE)[1:]]
    papers = []
    for reference in CITATION["references"]:
        authors = [f"{each['given-names']} {each['family-names']}" for each in reference["authors"]]
        papers.append(f": {', '.join(authors)}. *{reference['title']}.*")
    assert len(papers) == len(entries) == 4
    for paper, entry in zip(papers, entries, strict=True):
        assert paper in entry
    for reference, entry in zip(CITATION["references"], entries, strict=True):
        for known in (
            reference.get("doi"),
            reference.get("journal"),
            reference.get("conference", {}).get("name"),
        ):
            assert known is None or known in entry, "say nothing of a paper that the docs do not say"
        assert str(reference.get("year", "")) in entry
