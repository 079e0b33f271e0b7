"""DynamiQ's claims about bit budgets, single techniques, norms and the time of a step."""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.dynamiq import MMLU, instead
from gradwire.harness.report.claims.effects import (
    Effects,
    above,
    at_least,
    below,
    every,
    falls,
    near,
    rises,
)
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.evaluation import SeedFigure

TECHNIQUES = (
    {"codec": "uniform", "values": "uniform"},
    {"codec": "uniform", "values": "nonuniform"},
    {"codec": "dynamiq", "bits": 4.5, "group": 32, "scales": "bf16"},
    {"codec": "dynamiq", "bits": 4.5, "scales": "hierarchical", "rounding": "independent"},
    {"codec": "dynamiq", "bits": 4.5, "rounding": "correlated"},
)
"""The rows of Table 6: each adds a technique to the one before."""

dynamiq_techniques = Claims("DynamiQ")


def soonest(e: Evidence, factor: float) -> Effects:
    """DynamiQ reaches a target with 5 bits sooner than with 3, 4 or 6."""
    e = e.where(codec="dynamiq")
    return every(below(e.tta(factor, bits=5), e.tta(factor, bits=b)) for b in (3, 4, 6))


def ablated(e: Evidence, technique: int) -> SeedFigure:
    """The error of a row of Table 6."""
    return e.vnmse(**TECHNIQUES[technique])


def workloads(e: Evidence) -> Iterator[Evidence]:
    """The evidence of each model of Table 6, at each step whose gradients were kept."""
    for model in e.each(model=("llama1b", "llama1b_mmlu")):
        yield from model.each("gradients")


# DynamiQ, Figure 7 and Table 4: bit budgets

table4 = dynamiq_techniques.on("dynamiq_table4")
MXFP8_FOR_6_BITS = swap(codec=("dynamiq", "mxfp8"), bits=(6, None))


@table4("D12", "Section 5.1, Figure 7", "a plot, no number", foil=swap(bits=(5, 3)))
def _(e: Evidence) -> Effects:
    """Of the budgets from 3 to 6 bits, 5 bits reach 1.05 times BF16's perplexity soonest on Gemma 1B."""
    return soonest(e.where(model="gemma1b"), 1.05)


@table4(*("D12c", "Section 5.1, Figure 7", "a plot, no number", "paper"), chance=MMLU, foil=swap(bits=(5, 3)))
def _(e: Evidence) -> Effects:
    """Of the budgets from 3 to 6 bits, 5 bits reach 99 % of BF16's accuracy soonest on LLaMA 1B and
    MMLU."""
    return soonest(e.where(model="llama1b_mmlu"), 0.99)


@table4(
    "D12a",
    "Table 4",
    "0.01603 > 0.00589 > 0.00096 > 0.00059 (LLaMA), 0.02334 > 0.00831 > 0.00122 > 0.00053 (Gemma)",
    foil=MXFP8_FOR_6_BITS,
)
def _(e: Evidence) -> Effects:
    """The error falls with every further bit from 3 to 6."""
    return every(
        falls(b.vnmse(model=m, codec="dynamiq") for b in e.each(bits=(3, 4, 5, 6))) for m in e.axis("model")
    )


@table4(
    "D12b",
    "Table 4",
    "0.00096 < 0.00299 < 0.00589 (LLaMA), 0.00122 < 0.00308 < 0.00831 (Gemma)",
    foil=swap(codec=("mxfp8", "bf16")),
)
def _(e: Evidence) -> Effects:
    """MXFP8's error lies between those of DynamiQ at 4 and at 5 bits."""
    return every(
        rises(m.vnmse(codec="dynamiq", bits=5), m.vnmse(codec="mxfp8"), m.vnmse(codec="dynamiq", bits=4))
        for m in e.each("model")
    )


@table4(
    "D13",
    "Table 4",
    "3.051 > 2.842 > 2.604 > 2.390 > 2.123 (LLaMA), 1.440 > 1.397 > 1.353 > 1.306 > 1.246 (Gemma)",
    foil=MXFP8_FOR_6_BITS,
)
def _(e: Evidence) -> Effects:
    """Fewer bits make more rounds per second, and every budget makes more than MXFP8."""
    return every(
        every(
            falls(b.rounds_per_second(model=m, codec="dynamiq") for b in e.each(bits=(3, 4, 5, 6))),
            above(
                e.rounds_per_second(model=m, codec="dynamiq", bits=6),
                e.rounds_per_second(model=m, codec="mxfp8"),
            ),
        )
        for m in e.axis("model")
    )


# DynamiQ, Figure 12 and Table 6: one technique after another

table6 = dynamiq_techniques.on("dynamiq_table6")
WITHOUT_WIDTHS = swap({**TECHNIQUES[1], "bits": None, "scales": None}, group=(32, None))
"""The foil of claims about variable widths: the row before them in place of their own."""


@table6(
    "D22",
    "Section 6.2, Table 6",
    ("0.1278 > 0.0707 > 0.0198 > 0.0138 > 0.0091 (chat), 0.1207 > 0.0664 > 0.0130 > 0.0092 > 0.0059 (MMLU)"),
    foil=WITHOUT_WIDTHS,
)
def _(e: Evidence) -> Effects:
    """Every technique that is added lowers the error."""
    return every(falls(ablated(m, row) for row in range(5)) for m in workloads(e))


@table6(
    "D22a",
    "Section 6.2, Table 6",
    "14 times (chat), 22 times (MMLU; 20.5 by the table's cells)",
    foil=swap({**TECHNIQUES[1], "bits": None}, rounding=("correlated", None)),
)
def _(e: Evidence) -> Effects:
    """All techniques together lower uniform quantization's error to a tenth or less."""
    return every(at_least(ablated(m, 0) / ablated(m, 4), 10, null=1.0) for m in workloads(e))


@table6(
    "D22b",
    "Section 6.2, Table 6",
    "3.5 to 5.1 times; non-uniform values 1.8, hierarchical scales 1.4, correlated rounding 1.5 times",
    foil=WITHOUT_WIDTHS,
)
def _(e: Evidence) -> Effects:
    """Variable widths divide the error by more than any other technique does."""
    return every(
        above(ablated(m, 1) / ablated(m, 2), ablated(m, row) / ablated(m, row + 1))
        for m in workloads(e)
        for row in (0, 2, 3)
    )


# DynamiQ, Figures 1 and 3: norms of super-groups

fig1_fig3 = dynamiq_techniques.on("dynamiq_fig1_fig3")


@fig1_fig3("D24", "Section 2.2, Figure 1", "about 20 %, about 30 %, orders of magnitude below", "paper")
def _(e: Evidence) -> Effects:
    """Some 20 % (LLaMA 1B, MMLU) and 30 % (Gemma 1B, chat) of super-groups have norms below a tenth of
    the median."""
    return every(
        near(
            e.figure("norms.below_10th", case="256 as they are", model=m, gradients="training:step20"),
            share,
            null=0.0,
        )
        for m, share in (("llama1b_mmlu", 0.2), ("gemma1b", 0.3))
    )


@fig1_fig3(
    *("D24a", "Section 2.2, Figure 1", "a plot, no number"), foil=swap(case=("256 shuffled", "16 shuffled"))
)
def _(e: Evidence) -> Effects:
    """Shuffled, fewer than 1 in 100 super-groups are below a tenth of the median norm, and fewer than
    unshuffled."""
    return every(
        every(
            above(
                m.figure("norms.below_10th", case="256 as they are", gradients=g),
                m.figure("norms.below_10th", case="256 shuffled", gradients=g),
            ),
            below(m.figure("norms.below_10th", case="256 shuffled", gradients=g), 0.01),
        )
        for m in e.each(model=("llama1b_mmlu", "gemma1b"))
        for g in m.axis("gradients")
    )


# DynamiQ, Figures 6 and 17: where the time of a step goes

fig6 = dynamiq_techniques.on("dynamiq_fig6")


@fig6("D29", "Appendix D, Figure 17", "a plot, no number", foil=instead("thc"))
def _(e: Evidence) -> Effects:
    """DynamiQ computes as long as BF16 (within 10 %), and less of its communication is exposed, with
    every seed."""
    return every(
        below(e.compute_s(codec="dynamiq") / e.compute_s(codec="bf16"), 1.1),
        above(e.compute_s(codec="dynamiq") / e.compute_s(codec="bf16"), 0.9),
        below(e.exposed_comm_s(codec="dynamiq"), e.exposed_comm_s(codec="bf16")),
    )


@fig6("D29a", "Section 5.1, Figure 6", "a plot, no number", "gpu", foil=instead("thc"))
def _(e: Evidence) -> Effects:
    """Compression takes DynamiQ less of a step than THC, and less than the exposed communication that it
    saves."""
    return every(
        below(e.compression_s(codec="dynamiq"), e.compression_s(codec="thc")),
        below(
            e.compression_s(codec="dynamiq"),
            e.exposed_comm_s(codec="bf16") - e.exposed_comm_s(codec="dynamiq"),
        ),
    )
