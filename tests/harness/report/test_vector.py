"""Compact pictures: the same drawing in fewer bytes, with both pages' colours, safe to put on a page."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from gradwire.harness.report.style import DARK, PRINT, matplotlib_settings
from gradwire.harness.report.vector import Inlined, compact, dark_rules, path_data

RESULTS = Path(__file__).resolve().parents[3] / "results"


def drawn(scale: float = 1.0) -> str:
    with matplotlib.rc_context(matplotlib_settings(PRINT)):
        figure = Figure(figsize=(3.5, 2))
        axes = figure.subplots()
        axes.plot(np.arange(40) * scale, np.sin(np.arange(40)), "o-", color=PRINT.colors["blue"], label="b")
        axes.bar([1, 2], [0.5, 0.7], color=PRINT.colors["vermilion"], hatch="//", edgecolor=PRINT.ground)
        axes.set_title("a title of letters")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue().decode()


def points(text: str) -> list[tuple[str, list[float]]]:
    """The coordinates of each path, absolute, whether the text has them so or relative."""
    found = []
    for data in re.findall(r' d="([^"]*)"', text):
        here, began, way = (0.0, 0.0), (0.0, 0.0), list[float]()
        tokens = re.findall(r"[A-Za-z]|-?\d*\.?\d+", data)
        while tokens:
            command = tokens.pop(0)
            if command in "zZ":
                here = began
                continue
            one_axis = command in "hv"
            count = {"m": 1, "l": 1, "q": 2, "c": 3, "h": 1, "v": 1}[command.lower()]
            start = here if command.islower() else (0.0, 0.0)
            for _ in range(count):
                x = float(tokens.pop(0)) if command != "v" else 0.0
                y = float(tokens.pop(0)) if command != "h" and not one_axis else 0.0
                y = float(tokens.pop(0)) if command == "v" else y
                here = (start[0] + x, start[1] + y)
                way += here
            began = here if command in "mM" else began
        found.append(("".join(re.findall("[zZ]", data)).lower(), way))
    return found


def test_it_draws_the_same_paths_to_a_hundredth_of_a_point() -> None:
    before = drawn()
    after = compact(before)
    assert len(after) < 0.6 * len(before)
    old, new = points(before), points(after)
    assert [ends for ends, _ in old] == [ends for ends, _ in new]
    for (_, first), (_, second) in zip(old, new, strict=True):
        assert first == pytest.approx(second, abs=0.0051)
    styles = Counter(re.findall(r"stroke-dasharray: ([\d., ]+)", before))
    assert sum(styles.values()) == len(re.findall("stroke-dasharray=", after))


def test_equal_drawings_are_equal_and_compact_ones_stay() -> None:
    once = compact(drawn())
    assert once == compact(drawn()) == compact(once) != compact(drawn(2.0))
    with pytest.raises(ValueError, match="the picture is not XML"):
        compact(drawn()[:-20])


def test_another_path_is_left_as_it_is() -> None:
    assert path_data("M 1 2 A 3 3 0 0 1 4 4") == "M 1 2 A 3 3 0 0 1 4 4"
    assert path_data("M 0.001 0 L 10 0 L 10.006 5 z") == "m0 0h10l.01 5z"


def test_every_colour_has_its_dark_one() -> None:
    text = compact(drawn())
    rules = dict(re.findall(r'\[fill="(#[0-9a-f]{6})"\]\{fill:(#[0-9a-f]{6})\}', text))
    assert rules[PRINT.ground.lower()] == DARK.ground.lower()
    assert rules[PRINT.colors["blue"].lower()] == DARK.colors["blue"].lower()
    used = set(re.findall(r'(?:fill|stroke)="(#[0-9A-Fa-f]+)"', re.sub("<style>.*</style>", "", text)))
    assert used <= rules.keys() and len(used) > 3
    assert ".plots [fill=" in dark_rules(".plots") and "style=" not in text


def test_pictures_of_a_page_share_their_letters() -> None:
    page = Inlined()
    first, second = (page.element(compact(drawn(scale)), "says <b>") for scale in (1.0, 2.0))
    assert first is not None and second is not None and "&lt;b&gt;" in first
    assert " id=" not in first + second and "<style" not in first and "@media" not in first
    wanted = set(re.findall(r'(?:href="|url\()#([^")]+)', first + second))
    defined = re.findall(r' id="([^"]+)"', page.definitions)
    assert wanted <= set(defined) and len(defined) == len(set(defined))
    assert len(page.definitions) < 1.5 * len(compact(drawn()))


def test_a_definition_of_the_same_name_is_kept_apart() -> None:
    picture = '<svg xmlns="http://www.w3.org/2000/svg"><path id="m" d="{}"/><use href="#m"/></svg>'
    page = Inlined()
    shown = [page.element(picture.format(data), "") for data in ("m0 0v1", "m0 0v2", "m0 0v1")]
    assert [re.findall('href="([^"]+)"', each or "") for each in shown] == [["#m"], ["#m-2"], ["#m"]]
    assert page.definitions.count("<path") == 2


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        '<g onload="alert(1)"/>',
        '<g ONLOAD="alert(1)"/>',
        '<a href="javascript:alert(1)"><path d="m0 0"/></a>',
        '<use href="javascript:alert(1)"/>',
        '<use href="http://elsewhere/x.svg#a"/>',
        '<use xmlns:xlink="http://www.w3.org/1999/xlink" xlink:href="//elsewhere"/>',
        '<image href="data:text/html,x"/>',
        '<g style="background:url(//elsewhere)"/>',
        '<foreignObject><p xmlns="http://www.w3.org/1999/xhtml"/></foreignObject>',
        "<!-- a comment --><g/>",
        "<![CDATA[<script>]]>",
        "<g>a text</g>",
        '<animate attributeName="href" to="javascript:alert(1)"/>',
        "<g>",
    ],
)
def test_a_picture_that_could_act_is_not_put_on_the_page(inside: str) -> None:
    page = Inlined()
    assert page.element(f'<svg xmlns="http://www.w3.org/2000/svg">{inside}</svg>', "") is None
    assert "alert" not in page.definitions


def test_what_is_kept_is_compact_and_can_be_put_on_the_page() -> None:
    pictures = sorted(RESULTS.rglob("*.svg"))
    page = Inlined()
    for path in pictures:
        text = path.read_text()
        assert compact(text) == text and ElementTree.fromstring(text).get("width"), path
        assert page.element(text, path.name) is not None, path
    assert len(pictures) > 50
