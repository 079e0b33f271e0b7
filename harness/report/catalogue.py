"""The README's table of codecs, made from the registry: `python -m gradwire.harness.report.catalogue`."""

from __future__ import annotations

from pathlib import Path

from gradwire.codecs.interface import Codec, Layout
from gradwire.codecs.registry import codec_classes, make_codec
from gradwire.harness.record.files import write_atomically
from gradwire.harness.topology.registry import TOPOLOGIES

BEGIN, END = "<!-- codecs, made by gradwire.harness.report.catalogue -->", "<!-- end of codecs -->"

HEADER = ("codec", "source", "wire bits a coordinate", "topologies", "unbiased", "state", "metadata round")

SIZES = (2, 4, 5)
"""Numbers of workers that a codec is asked about."""


def codec_table() -> str:
    """Markdown: a row for each codec of this package, as its default settings make it."""
    own = [name for name, made in codec_classes().items() if made.__module__.startswith("gradwire.")]
    rows = [HEADER, ("---",) * len(HEADER), *(_row(make_codec(name)) for name in own)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def replaced(text: str) -> str:
    """A README's text with the table between the two markers made anew; ValueError if they are not there."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} … {END}")
    return f"{before}{begin}\n{codec_table()}\n{end}{after}"


def _row(codec: Codec) -> tuple[str, ...]:
    about = codec.about
    unbiased = "yes" if codec.unbiased else f"with `{about.unbiased_if}`" if about.unbiased_if else "no"
    return (
        f"`{codec.name}`",
        about.source,
        about.wire_bits,
        about.topologies or _topologies(codec),
        unbiased,
        about.state,
        about.metadata,
    )


def _topologies(codec: Codec) -> str:
    layout = Layout.flat(1 << 20)
    able = [name for name in TOPOLOGIES if all(codec.supports(name, size, layout) is None for size in SIZES)]
    return "all" if len(able) == len(TOPOLOGIES) else ", ".join(able)


if __name__ == "__main__":
    readme = Path(__file__).resolve().parents[2] / "README.md"
    write_atomically(readme, replaced(readme.read_text()))
