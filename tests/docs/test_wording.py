"""The pages and docstrings use the words of the field, and begin as English sentences do."""

from __future__ import annotations

import re

from tests.docs.pages import FENCE, LINK, PAGES, ROOT, SPAN

BEGINNINGS = "Of|The same|What|Whether|Which|How|Where|Whose|Who"
"""Words that begin a clause, where a docstring should begin with a noun phrase or a verb."""

INVERTED = re.compile(rf'^ *[rR]?"""\s*((?:{BEGINNINGS})\b.*)$', re.MULTILINE)
"""The first line of a docstring with one of these beginnings."""

INSTEAD = {
    r"yardsticks?": "rate–distortion bound",
    r"rivals?": "background traffic, background jobs",
    r"bits a coordinate": "bits per coordinate",
    r"nanoseconds a coordinate": "nanoseconds per coordinate",
    r"default kernels?": "reference implementation, definition",
    r"meetings?": "barrier",
    r"laps?": "span",
    r"has not got": "lacks, does not have",
    r"compiled plumbing": "native",
}
"""Patterns of words that the pages avoid, and the words to use instead."""

FORMER_NAMES = ("rivals and rival_mb",)
"""Words of the change log, which it may mention to explain their new names."""


def test_docstrings_begin_as_sentences_do() -> None:
    folders = ("harness", "codecs", "gradwire", "tests", "examples")
    claims = ROOT / "harness" / "report" / "claims"  # whose docstrings are the papers' claims
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    files = [path for path in found if not (path.parent == claims and "= Claims(" in path.read_text())]
    assert len(files) > 500
    inverted = [
        f"{path.relative_to(ROOT)}: {text}" for path in files for text in INVERTED.findall(path.read_text())
    ]
    assert inverted == [], "say what it is or returns: 'The mean of …', 'True if …', 'Returns …'"


def test_comments_in_csrc_begin_as_sentences_do() -> None:
    files = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp", ".cu")]
    assert len(files) > 80
    begin = re.compile(r"^(?! *//).*\n *// (Of|The same)\b.*$", re.MULTILINE)
    inverted = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in files
        for found in begin.finditer(path.read_text())
    ]
    assert inverted == [], "say what it is, does or returns"


def test_pages_use_the_words_of_the_field() -> None:
    faults = []
    for page in PAGES:
        text = page.read_text()
        for former in FORMER_NAMES:
            text = text.replace(former, "")
        for code in (FENCE, SPAN, LINK):
            text = code.sub("", text)
        for word, instead in INSTEAD.items():
            if found := re.search(rf"\b{word}\b", text, re.IGNORECASE):
                faults.append(f"{page.relative_to(ROOT)}: {found[0]!r}: say {instead}")
    assert faults == []
