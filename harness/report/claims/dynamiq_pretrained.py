"""DynamiQ's claims on pretrained models that are fine-tuned, the regime of the paper.

The models are smaller ones than the paper's: MiniLM on SST-2, whose accuracy is far above chance, and SmolLM2
on UltraChat.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.harness.report.claims.claim import Chance, Claims
from gradwire.harness.report.claims.dynamiq_scaling import growth
from gradwire.harness.report.claims.effects import (
    Effects,
    above,
    at_least,
    below,
    every,
    falls,
    near,
    rises,
    spared,
)
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.evaluation import SeedFigure

dynamiq_pretrained = Claims("DynamiQ")

DYNAMIQ = {"codec": "dynamiq", "bits": 5}
NONUNIFORM = {"codec": "uniform", "values": "nonuniform"}
MX = ("mxfp8", "mxfp6", "mxfp4")
MXFP8_INSTEAD = swap({"bits": None}, codec=("dynamiq", "mxfp8"))
MXFP4_INSTEAD = swap({"bits": None}, codec=("dynamiq", "mxfp4"))
FOUR_BITS = swap(bits=(5, 4))
BF16_AT_FIVE_BITS = swap(bits=(5, None), codec=("dynamiq", "bf16"))
THC_INSTEAD = swap({"bits": None}, codec=("dynamiq", "thc"))
"""THC decodes once, whatever the topology: its error is the same on a ring and on a butterfly."""

SST2 = Chance(0.509, 872, lambda e: e.final_metric(codec="bf16", configuration="sst2"))
"""Answering "positive" to every sentence of SST-2's validation."""


def ends_like_bf16(e: Evidence) -> Effects:
    """DynamiQ at 5 bits ends with BF16's metric, where MXFP4 shows what harm is."""
    return spared(e.final_metric(**DYNAMIQ), e.final_metric(codec="bf16"), e.final_metric(codec="mxfp4"))


def times(e: Evidence, codec: str) -> SeedFigure:
    """A codec's error over that of DynamiQ at 5 bits."""
    return e.vnmse(codec=codec) / e.vnmse(**DYNAMIQ)


# DynamiQ, Figures 4, 5 and Table 3: fine-tuning on SST-2

glue = dynamiq_pretrained.on("pretrained_glue")


@glue("D40", "Abstract, Section 5.1", "0.1 %", chance=SST2)
def _(e: Evidence) -> Effects:
    """Fine-tuned on SST-2, DynamiQ at 5 bits ends with BF16's accuracy (a fifth at most of what MXFP4
    loses)."""
    return ends_like_bf16(e.where(configuration="sst2"))


@glue("D41", "Figures 4, 5", "earlier, 40.8 % on MMLU", chance=SST2, foil=MXFP4_INSTEAD)
def _(e: Evidence) -> Effects:
    """Fine-tuned on SST-2, DynamiQ at 5 bits reaches 99 % of BF16's accuracy before BF16 does."""
    e = e.where(configuration="sst2")
    return below(e.tta(0.99, **DYNAMIQ), e.tta(0.99, codec="bf16"))


@glue("D41a", "Figures 4, 5", "earlier, 34.5 % on MMLU", chance=SST2, foil=MXFP4_INSTEAD)
def _(e: Evidence) -> Effects:
    """Fine-tuned on SST-2, DynamiQ at 5 bits reaches 99 % of BF16's accuracy before MXFP8 does."""
    e = e.where(configuration="sst2")
    return below(e.tta(0.99, **DYNAMIQ), e.tta(0.99, codec="mxfp8"))


@glue("D42", "Figure 5", "a plot, no number", chance=SST2, foil=MXFP4_INSTEAD)
def _(e: Evidence) -> Effects:
    """Fine-tuned on SST-2, DynamiQ at 5 bits reaches 98 % of BF16's accuracy and stays above it."""
    return at_least(e.stays(0.98, configuration="sst2", **DYNAMIQ), 1, null=0.0)


@glue("D43", "Section 5.1, Table 3", "0.00149 against 0.00320 and so on", foil=FOUR_BITS)
def _(e: Evidence) -> Effects:
    """On SST-2's gradients DynamiQ at 5 bits has a lower error than MXFP8, with every seed."""
    e = e.where(configuration="sst2")
    return below(e.vnmse(**DYNAMIQ), e.vnmse(codec="mxfp8"))


@glue("D44", "Section 5.1, Table 3", "orders of magnitude (4.1 to 204)", foil=FOUR_BITS)
def _(e: Evidence) -> Effects:
    """On SST-2's gradients MXFP4 and THC have at least ten times the error of DynamiQ at 5 bits."""
    e = e.where(configuration="sst2")
    return every(at_least(times(e, c), 10, null=1.0) for c in ("mxfp4", "thc"))


def codecs_take_time(e: Evidence) -> bool:
    """DynamiQ's codec work takes time: without, rounds per second follow from wire bits alone."""
    return e.compression_s(configuration="sst2", **DYNAMIQ).median > 0


@glue(*("D45", "Table 4", "2.842 > 2.604 > 2.123 and so on"), active=codecs_take_time, foil=BF16_AT_FIVE_BITS)
def _(e: Evidence) -> Effects:
    """On SST-2 DynamiQ makes more rounds per second with 4 bits than with 5, and more with 5 than MXFP8."""
    e = e.where(configuration="sst2")
    four = e.rounds_per_second(codec="dynamiq", bits=4)
    return falls(four, e.rounds_per_second(**DYNAMIQ), e.rounds_per_second(codec="mxfp8"))


shaped = dynamiq_pretrained.on("pretrained_shaped")


@shaped("D46", "Figures 4, 5", "earlier in all workloads", chance=SST2, foil=MXFP4_INSTEAD)
def _(e: Evidence) -> Effects:
    """On shaped links DynamiQ at 5 bits reaches 98 % of BF16's accuracy on SST-2 before BF16 does."""
    return below(e.tta(0.98, **DYNAMIQ), e.tta(0.98, codec="bf16"))


# DynamiQ, Figures 4, 5 and Table 3: LLaMA's chat

chat = dynamiq_pretrained.on("pretrained_chat")


@chat("D50", "Abstract, Section 5.1", "0.1 %")
def _(e: Evidence) -> Effects:
    """Fine-tuned on UltraChat, DynamiQ at 5 bits ends with BF16's perplexity (a fifth at most of what
    MXFP4 adds)."""
    return ends_like_bf16(e)


@chat("D51", "Section 5.1, Table 3", "0.00320 over 0.00149", foil=FOUR_BITS)
def _(e: Evidence) -> Effects:
    """On UltraChat's gradients MXFP8's error is 2.15 times that of DynamiQ at 5 bits."""
    printed = {"model": "LLaMA 1B", "dataset": "UltraChat", "metric": "vNMSE"}
    claimed = e.paper("dynamiq/table3", method="MXFP8", **printed) / e.paper(
        "dynamiq/table3", method="DynamiQ", **printed
    )
    return near(times(e, "mxfp8"), claimed, null=1.0)


@chat("D51a", "Section 5.1, Table 3", "0.00149 against 0.00320", foil=FOUR_BITS)
def _(e: Evidence) -> Effects:
    """On UltraChat's gradients DynamiQ at 5 bits has a lower error than MXFP8, with every seed."""
    return below(e.vnmse(**DYNAMIQ), e.vnmse(codec="mxfp8"))


@chat("D52", "Section 5.1, Table 3", "0.11059 over 0.00149, 74 times", foil=FOUR_BITS)
def _(e: Evidence) -> Effects:
    """On UltraChat's gradients MXFP4 has at least ten times the error of DynamiQ at 5 bits."""
    return at_least(times(e, "mxfp4"), 10, null=1.0)


# DynamiQ, Tables 3 to 6, Appendix B: saved gradients of LLaMA's chat, step by step

replay = dynamiq_pretrained.on("pretrained_replay")


def steps(e: Evidence, **cells: object) -> Iterator[Evidence]:
    """The evidence of each saved step of SmolLM2, eight workers on a ring unless `cells` says otherwise."""
    where = {"model": "smollm2", "workers": 8, "topology": "ring"} | cells
    return e.where(**{key: value for key, value in where.items() if value is not None}).each("gradients")


def ablated(e: Evidence) -> list[SeedFigure]:
    """The errors of the rows of Table 6 that have 4.5 bits, and of uniform quantization, in its order."""
    variable = {"codec": "dynamiq", "bits": 4.5}
    return [
        e.vnmse(codec="uniform", values="uniform"),
        e.vnmse(**NONUNIFORM),
        e.vnmse(**variable, group=32, scales="bf16"),
        e.vnmse(**variable, scales="hierarchical", rounding="independent"),
        e.vnmse(**variable, scales="hierarchical", rounding="correlated"),
    ]


def budget(e: Evidence, bits: int) -> SeedFigure:
    """DynamiQ's error with the paper's own techniques."""
    return e.vnmse(codec="dynamiq", bits=bits)


@replay("D53", "Table 4", "0.01603 > 0.00589 > 0.00096 > 0.00059", foil=swap(bits=(3, 6)))
def _(e: Evidence) -> Effects:
    """On the gradients of LLaMA's chat, at every saved step, the error falls with every further bit from 3
    to 6."""
    return every(falls(budget(s, b) for b in (3, 4, 5, 6)) for s in steps(e))


@replay("D54", "Table 4", "0.00096 < 0.00299 < 0.00589", foil=swap(codec=("mxfp8", "mxfp4")))
def _(e: Evidence) -> Effects:
    """There MXFP8's error lies between those of DynamiQ at 5 and at 4 bits."""
    return every(rises(budget(s, 5), s.vnmse(codec="mxfp8"), budget(s, 4)) for s in steps(e))


@replay("D55", "Table 3", "0.00320 < 0.01350 < 0.11059", foil=swap(codec=("mxfp4", "mxfp8")))
def _(e: Evidence) -> Effects:
    """There MXFP8 has the lowest and MXFP4 the highest error of the three MX formats."""
    return every(rises(s.vnmse(codec=c) for c in MX) for s in steps(e))


@replay("D56", "Table 3", "0.08044, 0.11059, 0.11978 over 0.00149", foil=FOUR_BITS)
def _(e: Evidence) -> Effects:
    """There MXFP4, THC and OmniReduce have at least ten times the error of DynamiQ at 5 bits."""
    return every(
        at_least(times(s, c), 10, null=1.0) for s in steps(e) for c in ("mxfp4", "thc", "omnireduce")
    )


@replay(
    "D57",
    "Section 6.2, Table 6",
    "0.1278 > 0.0707 > 0.0198 > 0.0138 > 0.0091",
    foil=swap({"bits": None, "scales": None}, codec=("dynamiq", "mxfp4"), rounding=("correlated", None)),
)
def _(e: Evidence) -> Effects:
    """On the gradients of LLaMA's chat, at every saved step, every technique that is added lowers the
    error."""
    return every(falls(ablated(s)) for s in steps(e))


@replay(
    "D57a",
    "Section 6.2, Table 6",
    "14 times",
    foil=swap(
        {"codec": "uniform", "values": "nonuniform", "bits": None, "scales": None},
        rounding=("correlated", None),
    ),
)
def _(e: Evidence) -> Effects:
    """There all techniques together lower uniform quantization's error to a tenth or less."""
    return every(at_least(rows[0] / rows[-1], 10, null=1.0) for s in steps(e) for rows in [ablated(s)])


@replay("D58", "Section 5.3, Tables 3, 5", "0.00067 against 0.00096", foil=THC_INSTEAD)
def _(e: Evidence) -> Effects:
    """Between eight workers the errors of DynamiQ and the MX formats on the gradients of LLaMA's chat are
    lower on the butterfly than on the ring."""
    return every(
        every(
            below(s.vnmse(topology="butterfly", **DYNAMIQ), s.vnmse(topology="ring", **DYNAMIQ)),
            every(
                below(s.vnmse(topology="butterfly", codec=c), s.vnmse(topology="ring", codec=c)) for c in MX
            ),
        )
        for s in steps(e, topology=None)
    )


@replay("D59", "Appendix B", "n^3 against n^2", foil=THC_INSTEAD)
def _(e: Evidence) -> Effects:
    """From four to eight workers DynamiQ's error on the gradients of LLaMA's chat grows faster on the ring
    than on the butterfly."""
    return every(
        above(
            s.vnmse(topology="ring", workers=8, **DYNAMIQ) / s.vnmse(topology="ring", workers=4, **DYNAMIQ),
            s.vnmse(topology="butterfly", workers=8, **DYNAMIQ)
            / s.vnmse(topology="butterfly", workers=4, **DYNAMIQ),
        )
        for s in steps(e, topology=None, workers=None)
    )


# DynamiQ, Figures 10 and 11: scaling

scaling = dynamiq_pretrained.on("pretrained_scaling")
WORKERS = (4, 8, 16)


@scaling("D60", "Section 6.1, Figure 10", "a plot, no number", foil=MXFP8_INSTEAD)
def _(e: Evidence) -> Effects:
    """Fine-tuned on SST-2 with four to 16 workers, DynamiQ's error grows with a smaller power of their number
    than those of the MX formats and THC."""
    return every(below(growth(e, "dynamiq", WORKERS), growth(e, c, WORKERS)) for c in (*MX, "thc"))


@scaling("D61", "Section 6.1, Figure 11", "a plot, no number", foil=MXFP4_INSTEAD)
def _(e: Evidence) -> Effects:
    """Fine-tuned on SST-2 with four to 16 workers, DynamiQ at 5 bits has the lowest error of all compressing
    codecs."""
    return every(
        below(n.vnmse(**DYNAMIQ), n.vnmse(codec=c)) for n in e.each(workers=WORKERS) for c in (*MX, "thc")
    )
