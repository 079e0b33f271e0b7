"""The report as pages: a part of `README.md`, and one self-contained HTML file."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from html import escape as html_escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gradwire.harness.files.reading import read_bytes, read_text
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.report.claims.verdict import LATE_MARK, Word
from gradwire.harness.report.evaluations import Evaluations
from gradwire.harness.report.gpu_rates import all_breaks
from gradwire.harness.report.in_words import resolution
from gradwire.harness.report.page_lines import (
    about,
    asked,
    commits,
    machines,
    network,
    networks,
    seeds,
    source,
    summary,
    told,
)
from gradwire.harness.report.paper_tables import CHANGED_SOURCES, OTHER_SOURCES
from gradwire.harness.report.summary import (
    FAILS,
    HOLDS,
    IN_PART,
    NOT_RUN,
    UNTOLD,
    WHY,
    counted,
    informative,
    listed,
)
from gradwire.harness.report.tables import escaped, plain
from gradwire.harness.report.vector import Inlined, dark_rules

if TYPE_CHECKING:
    from jinja2 import Environment

README, PAGE = "README.md", "report.html"
BEGIN, END = "<!-- evaluations, made by task=report -->", "<!-- end of evaluations -->"
FRONT_BEGIN, FRONT_END = "<!-- summary, made by task=report -->", "<!-- end of summary -->"
"""The lines of the project's README between which the summary stands."""

REMEDY = "restore it, or remove it"

ANCHORS = {" ": "-", ",": "", ".": "", "(": "", ")": "", "+": "", "/": "-", ":": ""}
NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
PLACE = ".plots"
"""The elements that hold the page's pictures."""

PART_CLASSES = {
    HOLDS: "reproduced",
    IN_PART: "in-part",
    FAILS: "not-reproduced",
    UNTOLD: "not-testable",
    WHY: "not-testable",
    NOT_RUN: "not-run",
}

MEDIA = {".svg": "image/svg+xml", ".png": "image/png"}


def write_pages(found: Evaluations, output: Path) -> list[Path]:
    """Writes both pages to `output`, which is created if necessary; returns them.

    A README there is only changed in its part for evaluations. Raises ValueError in one line if a README has
    no such part.
    """
    make_output(output)
    files = [output / README, output / PAGE]
    write_atomically(files[0], with_evaluations(files[0], markdown(found)))
    write_atomically(files[1], html(found))
    return files


def make_output(output: Path) -> None:
    """Makes the folder of the pages; raises ValueError in one line."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"report.output={output} cannot be made ({error.strerror}); choose another folder"
        ) from None


def write_front(found: Evaluations, path: Path) -> list[Path]:
    """Replaces the summary in the README at `path`, if it has the lines for one; returns what was written."""
    if not path.is_file() or FRONT_BEGIN not in (text := read_text(path, remedy=REMEDY, inside=path.parent)):
        return []
    before, _, rest = text.partition(FRONT_BEGIN)
    _, end, after = rest.partition(FRONT_END)
    if not end:
        raise ValueError(f"{path} has no line {FRONT_END}; add it below the summary")
    write_atomically(path, f"{before}{FRONT_BEGIN}\n{front(found)}\n{FRONT_END}{after}")
    return [path]


def with_evaluations(path: Path, part: str) -> str:
    """The text of the README at `path` with its part replaced by `part`, or a new README."""
    if not os.path.lexists(path):
        return f"# Results\n\n{BEGIN}\n{part}\n{END}\n"
    before, begin, rest = read_text(path, remedy=REMEDY, inside=path.parent).partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"{path} has no lines {BEGIN} and {END}; add them where the evaluations belong, or choose "
            "another folder with report.output="
        )
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def markdown(found: Evaluations) -> str:
    """The part of the README."""
    environment = _environment(found, as_markdown)
    return environment.get_template("evaluations.md.j2").render(**_content(found)).strip()


def html(found: Evaluations) -> str:
    """The page: plots inlined, no scripts, no links to files."""
    pictures = Pictures(found.folder)
    content = _content(found) | {"pictures": pictures, "dark_rules": dark_rules(PLACE)}
    return _environment(found).get_template("report.html.j2").render(**content)


def _content(found: Evaluations) -> dict[str, Any]:
    return {
        "evaluations": found,
        "folder": found.folder,
        "other_sources": OTHER_SOURCES,
        "changed_sources": CHANGED_SOURCES,
        "late": LATE_MARK,
        "totals": totals(found),
        "breaks": all_breaks(found.gpus),
    }


def totals(found: Evaluations) -> str:
    """Says what was tried and what came of it, of all papers: the report's first sentence."""
    outcomes = [section.outcome for section in found.sections]
    tried = sum(len(each.tried) for each in outcomes)
    held, failed, untold, not_run, late, ours = (
        sum(getattr(each, name) for each in outcomes)
        for name in ("held", "failed", "untold", "not_run", "late", "by_our_threshold")
    )
    predicted = sum(sum(each.predicted) for each in outcomes)
    about = (
        (predicted, "on predictions of our models of networks, for which nothing was trained"),
        (ours, "on claims without a figure, whose thresholds are ours"),
        (late, f"on claims that were written, or changed, after the run ({LATE_MARK})"),
    )
    counts = [f"{'all' if each == held + failed else each} are {what}" for each, what in about if each]
    after = f" Of these {held + failed} verdicts {listed(counts)}." if counts else ""
    first, against = (sum(each.claimed_first[index] for each in outcomes) for index in (0, 1))
    if predicted or late:
        after += f" Of claims on runs that stood before these {first} hold and {against} do not."
    number = str(len(outcomes)) if len(outcomes) >= len(NUMBERS) else NUMBERS[len(outcomes)]
    papers = f"{number} paper" if len(outcomes) == 1 else f"{number} papers"
    return (
        f"{papers}, {tried} statements about runs: {held} hold and {failed} do not; {untold} are undecided, "
        f"and {not_run} have not been tried.{after}"
    )


def front(found: Evaluations) -> str:
    """The part of the project's README: the summary's first lines, and where codecs pay on GPUs."""
    environment = _environment(found, as_markdown)
    return environment.get_template("front.md.j2").render(**_content(found)).strip()


class Made(str):
    """Text that is Markdown already."""


def as_markdown(value: Any) -> str:
    """The Markdown that the template writes for a value: escaped, unless the template itself has made it."""
    return value if isinstance(value, Made) else escaped(str(value))


def address(path: Path) -> Made:
    """A path as the address of a link."""
    return Made(quote(path.as_posix()))


def _environment(found: Evaluations, finalize: Callable[[Any], str] | None = None) -> Environment:
    """The templates' environment: values from records are escaped for HTML, and for Markdown by `finalize`,
    unless the template says otherwise."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "anchor": anchor,
        "counted": counted,
        "informative": informative,
        "word_class": word_class,
        "part_class": PART_CLASSES.__getitem__,
        "made": Made,
        "address": address,
        "plain": plain,
        "machines": machines,
        "commits": commits,
        "told": told,
        "resolution": resolution,
        "about": about,
        "source": source,
        "network": network,
        "networks": networks,
        "asked": asked,
        "summary": summary,
        "seeds": seeds,
    }
    return made


def word_class(word: Word) -> str:
    """The class of a verdict's word in the page's style."""
    return word.partition(",")[0].removesuffix(" here").replace(" ", "-")


def anchor(*words: str) -> str:
    """A name for a place in the page, as links write it."""
    text = "-".join(words).lower()
    return "".join(ANCHORS.get(letter, letter) for letter in text)


def data(path: Path, inside: Path) -> str:
    """The contents of a file in the folder `inside` as a data address."""
    content = base64.b64encode(read_bytes(path, remedy=REMEDY, inside=inside)).decode()
    return f"data:{MEDIA[path.suffix]};base64,{content}"


class Pictures:
    """The pictures of a page as elements of it, each with the text that stands for it."""

    def __init__(self, inside: Path) -> None:
        self._inside, self._inlined = inside, Inlined()
        self._shown: dict[Path, str] = {}

    def first_at(self, path: Path, place: str) -> str:
        """The place, given as an anchor, where a picture is shown: this one if it is the first."""
        return self._shown.setdefault(path, place)

    def element(self, path: Path, says: str) -> str:
        """The picture at `path` as HTML: drawn on the page itself if it can do nothing else there."""
        drawn = None
        if path.suffix == ".svg":
            text = read_text(path, remedy=REMEDY, inside=self._inside)
            drawn = self._inlined.element(text, says)
        if drawn is not None:
            return drawn
        return f'<img loading="lazy" src="{data(path, self._inside)}" alt="{html_escape(says)}">'

    @property
    def definitions(self) -> str:
        """The definitions that the elements refer to; complete once all are on the page."""
        return self._inlined.definitions
