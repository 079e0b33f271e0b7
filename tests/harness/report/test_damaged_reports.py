"""A folder of results from elsewhere: damage is named, nothing outside of it is shown, no text is markup."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from damages import DAMAGES, EXCHANGES, exchange, one_line, restore
from made_up_results import MADE_UP, PAPER, made_up, write_results

from gradwire.harness.report import evaluations
from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.known_sweeps import KnownSweep
from gradwire.harness.report.evaluations import collect
from gradwire.harness.report.page import html, markdown, write_pages
from gradwire.harness.report.sweep_record import save_sweep_record

SECRET = "hunter2-secret"
MARKUP = "<img src=x onerror=alert(1)> [a](http://b) |"

FILES = (
    *("made_up/small/sweep.json", "made_up/small/values.csv.gz", "made_up/small/tta-print.svg"),
    *("made_up/small/old-print.png", "papers/paper.yaml", "reference/paper/table1.csv"),
    "README.md",
)
SEALED = FILES[:2]


def known() -> dict[str, KnownSweep]:
    sweep = KnownSweep()
    sweep.add_record(made_up())
    return {"made_up": sweep}


@pytest.fixture(autouse=True)
def claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluations, "CLAIMS", (MADE_UP,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("elsewhere") / "results")


def shown(pages: list[Path]) -> str:
    """The text of the pages and of all that is inlined in them."""
    text = "".join(page.read_text() for page in pages)
    inlined = re.findall(r"base64,([^\"]*)", text)
    return text + "".join(base64.b64decode(each).decode("latin-1") for each in inlined)


@pytest.mark.parametrize("name", FILES)
def test_every_damage_is_named_and_nothing_outside_is_shown(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", SECRET)
    path, outside, sound = folder / name, tmp_path / "outside", (folder / name).read_bytes()
    outside.write_bytes(sound + SECRET.encode())
    other = (folder / "papers" / "paper.yaml").read_bytes()
    changes: dict[str, Callable[[], object]] = {
        how: lambda damage=damage: path.write_bytes(damage(sound, other))  # type: ignore[misc]
        for how, damage in DAMAGES.items()
    }
    changes |= {
        how: lambda change=change: exchange(path, change, outside)  # type: ignore[misc]
        for how, change in EXCHANGES.items()
    }
    for how, change in changes.items():
        change()
        try:
            found = collect(folder, known())
            if how in EXCHANGES or name == "README.md":
                text = shown(write_pages(found, folder if name == "README.md" else tmp_path / "out"))
                assert SECRET not in text and "PATH=" not in text, how
            for line in found.left_out:
                one_line(line)
            if name in SEALED and (how, name) != ("deleted", SEALED[0]):
                assert found.left_out and "resume=never" not in found.left_out[0], how
            if "link" in how or how == "a pipe":
                assert name == "README.md" or found.left_out, how
        except ValueError as error:
            one_line(str(error))
            assert name not in SEALED, how
        finally:
            restore(path, sound)
    assert collect(folder, known()).left_out == []


def test_a_plot_that_cannot_be_used_is_left_out_and_the_other_form_shown(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results")
    plot = folder / "made_up" / "small" / "tta-print.svg"
    exchange(plot, EXCHANGES["a pipe"], plot)
    plot.with_suffix(".png").write_bytes((folder / "made_up" / "small" / "old-print.png").read_bytes())
    found = collect(folder, known())
    assert found.left_out == [
        "made_up/small/tta-print.svg: is not a regular file; replace it by the plot itself, or remove it"
    ]
    (picture,) = [each for each in found.sections[0].shown[1].pictures if each.name == "tta"]
    assert picture.file.name == "tta-print.png"


def test_no_text_of_a_record_is_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_results(tmp_path / "results")
    place = folder / "made_up" / "small"
    own = made_up()
    cells = [
        replace(
            each,
            commit=MARKUP[:7],
            code_hash=f"{MARKUP}{index % 2}" if each.done else None,
            run=MARKUP,
            machine={"processor": MARKUP, "cores": 2, "gpus": [MARKUP]},
            reason=MARKUP if not each.done else "",
        )
        for index, each in enumerate(own.cells)
    ]
    values = tuple(each._replace(case=MARKUP) for each in own.values[:1]) + own.values
    marked = replace(own, cells=cells, values=values, command=MARKUP, text=MARKUP, paper=MARKUP)
    save_sweep_record(place, marked)
    (place / "tta-print.svg").rename(place / "tta<img src=x onerror=alert(1)>-print.svg")
    quoted = json.dumps(MARKUP)
    claims = Claims("A Paper")
    claims.without_predicate("P3", MARKUP, MARKUP, MARKUP, MARKUP)
    monkeypatch.setattr(evaluations, "CLAIMS", (claims,))
    paper = PAPER.replace("error and speed", quoted).replace("why: a diagram", f"why: {quoted}")
    for told in ("{P2: On the <links> of Table 1 it has a tenth.}", "{P1: It rests on <one> port.}"):
        paper = paper.replace(told, f"{{P3: {quoted}}}")
    (folder / "papers" / "paper.yaml").write_text(paper.replace("[tta,", "[tta*,"))
    (folder / "damaged<b>").mkdir()
    (folder / "damaged<b>" / "sweep.json").write_text("{")
    found = collect(folder, known())
    readme, page = markdown(found), html(found)
    assert len(found.left_out) == 1 and readme.count("alert") > 10
    for text in (readme, page):
        assert "<img src=x" not in text and "<img sr |" not in text and "damaged<b>" not in text
    assert "](http" not in readme.replace("\\]", "")
    assert "tta%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E-print.svg" in readme
