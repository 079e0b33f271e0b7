"""Links of the documentation lead somewhere, and the front page leads to every page."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import PAGES, ROOT, anchors, blocks, links, name, prose

FRONT, INDEX = ROOT / "README.md", ROOT / "docs" / "README.md"


def broken_links(page: Path, text: str) -> list[str]:
    """The faults of the links in `text`, which is part of `page`."""
    faults = []
    for link in links(text):
        if link.startswith(("https://", "http://")):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            faults.append(f"{link}: no such file")
        elif not target.is_relative_to(ROOT):
            faults.append(f"{link}: leads out of the repository")
        elif fragment and fragment not in anchors(target.read_text()):
            faults.append(
                f"{link}: no such heading; there are {', '.join(sorted(anchors(target.read_text())))}"
            )
    return faults


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken_links(page, prose(page))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_say_what_they_are(page: Path) -> None:
    from pages import IGNORED, PYTHON, SHELL

    for block in blocks(page):
        assert block.language in (*SHELL, *PYTHON, *IGNORED), f"line {block.line}: ```{block.language}"
    assert prose(page).count("```") == 0, "a block of code has no end"


@pytest.mark.parametrize("front", [FRONT, INDEX], ids=name)
def test_every_page_is_one_click_away(front: Path) -> None:
    reached = {(front.parent / link.partition("#")[0]).resolve() for link in links(prose(front))}
    pages = [page for page in ROOT.glob("docs/*.md") if page != INDEX]
    guides = [ROOT / "harness" / folder / "README.md" for folder in ("comm/topology", "models", "data")]
    assert [name(page) for page in [*pages, *guides] if page not in reached] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[x](nowhere.md)", "no such file"),
        ("[x](docs/codecs.md#no-such-part)", "no such heading"),
        ("[x](../outside)", "no such file"),
        ('<img src="results/demo/none.png">', "no such file"),
    ],
)
def test_planted_broken_links_are_found(text: str, fault: str) -> None:
    assert [found.split(": ")[1].split(";")[0] for found in broken_links(FRONT, text)] == [fault]
    assert not broken_links(FRONT, "[x](docs/codecs.md#error-feedback) [y](#install) [z](https://e.org/none)")
