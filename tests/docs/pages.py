"""The pages of the documentation as their readers see them: blocks of code, inline code, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PAGES = sorted(
    [ROOT / "README.md", ROOT / "codecs" / "README.md", ROOT / "csrc" / "README.md"]
    + [ROOT / "results" / "README.md"]
    + [*ROOT.glob("docs/*.md"), *ROOT.glob("harness/*/README.md")]
)
"""The pages that describe the present; those in results describe what was recorded then."""

EXAMPLES = sorted(ROOT.glob("examples/*.py"))

SHELL, PYTHON = ("", "sh", "bash", "console"), ("python",)
IGNORED = ("text", "yaml", "json", "toml", "ini", "slurm")
"""The languages of code blocks; any other is a mistake."""

FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HTML_LINK = re.compile(r"""(?:src|srcset|href)="([^"]+)\"""")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    text: str


def name(page: Path) -> str:
    """A page's name in messages and test ids."""
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    text = page.read_text()
    return tuple(
        Block(page, text.count("\n", 0, found.start()) + 1, found[2], found[3])
        for found in FENCE.finditer(text)
    )


@cache
def prose(page: Path) -> str:
    """A page's text without its blocks of code."""
    return FENCE.sub("", page.read_text())


def spans(text: str) -> Iterator[str]:
    """Inline code, on one line."""
    for found in SPAN.finditer(text):
        yield " ".join(found[2].replace("\\|", "|").split())


def links(text: str) -> Iterator[str]:
    """Targets of links and pictures, Markdown's and HTML's, but for those in inline code."""
    plain = SPAN.sub("", text)
    for pattern in (LINK, HTML_LINK):
        yield from (found[1] for found in pattern.finditer(plain))


def anchors(text: str) -> set[str]:
    """The fragments that GitHub gives the headings of a page."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower(), flags=re.UNICODE)
        slug, count = words.replace(" ", "-"), 0
        while (slug if not count else f"{slug}-{count}") in found:
            count += 1
        found.add(slug if not count else f"{slug}-{count}")
    return found
