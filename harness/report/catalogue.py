"""The table of codecs in docs/codecs.md, made from the registry.

`python -m gradwire.harness.report.catalogue` makes it again.
"""

from __future__ import annotations

from pathlib import Path

from gradwire.codecs.interface import Codec, Layout
from gradwire.codecs.registry import codec_classes, make_codec
from gradwire.harness.comm.topology.registry import TOPOLOGIES
from gradwire.harness.files.writing import write_atomically

BEGIN, END = "<!-- codecs, made by gradwire.harness.report.catalogue -->", "<!-- end of codecs -->"

PAGE = Path("docs") / "codecs.md"
"""Where the table stands, below the repository's root."""

HEADER = (
    *("codec", "source", "wire bits per coordinate", "topologies"),
    *("unbiased", "error feedback", "state", "metadata round"),
)

SIZES = (2, 4, 5)
"""Numbers of workers that a codec is asked about."""


def codec_table() -> str:
    """Markdown: a row for each codec of this package, as its default settings make it."""
    own = [name for name, made in codec_classes().items() if made.__module__.startswith("gradwire.")]
    rows = [HEADER, ("---",) * len(HEADER), *(_row(make_codec(name)) for name in own)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def replaced(text: str) -> str:
    """A page's text with the table between the two markers made anew; ValueError if they are not there."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} … {END}")
    return f"{before}{begin}\n{codec_table()}\n{end}{after}"


def _row(codec: Codec) -> tuple[str, ...]:
    about = codec.about
    unbiased = (
        "yes" if codec.traits.unbiased else f"with `{about.unbiased_if}`" if about.unbiased_if else "no"
    )
    return (
        f"`{codec.name}`",
        about.source,
        about.wire_bits,
        _topologies(codec),
        unbiased,
        _feedback(codec),
        about.state,
        about.metadata,
    )


def _topologies(codec: Codec) -> str:
    if codec.traits.uses_backend:
        return "the backend's"
    able = [name for name in TOPOLOGIES if _runs_on(codec, name)]
    return "all" if len(able) == len(TOPOLOGIES) else ", ".join(able)


def _feedback(codec: Codec) -> str:
    """Whether `codec.ef=true` goes with the codec's default settings."""
    try:
        corrected = make_codec(codec.name, ef=True)
    except ValueError:
        return "its own" if hasattr(codec, "feedback") else "no"
    stable = all(_runs_on(corrected, name) for name in TOPOLOGIES)
    return "yes" if stable else "refused at the default settings"


def _runs_on(codec: Codec, topology: str) -> bool:
    layout = Layout.flat(1 << 20)
    return all(codec.supports(topology, size, layout) is None for size in SIZES)


if __name__ == "__main__":
    page = Path(__file__).resolve().parents[2] / PAGE
    write_atomically(page, replaced(page.read_text()))
