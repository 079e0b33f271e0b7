"""EDGC's claims about gradients over training and the ranks that follow."""

from __future__ import annotations

from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.edgc import ranks_move
from gradwire.harness.report.claims.effects import (
    Effects,
    above,
    at_least,
    at_most,
    below,
    close,
    every,
    near,
    rises,
    spared,
)
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.claims.fits import line_error
from gradwire.harness.report.evaluation import SeedFigure

edgc_gradients = Claims("EDGC")

printed = edgc_gradients.of_print()


def quarter_over_all(e: Evidence) -> SeedFigure:
    """The time that a quarter of the coordinates takes over that of all."""
    return e.ns_per_coordinate(case="edgc.bits.4 float32 16777216 cpu 1") / e.ns_per_coordinate(
        case="edgc.bits.1 float32 16777216 cpu 1"
    )


def ranked(e: Evidence, rank: int) -> SeedFigure:
    """The perplexity at the end with PowerSGD of a rank."""
    return e.last("perplexity", codec="powersgd", rank=rank)


# EDGC: gradients over training (Figures 2 to 4, 10, 12, Tables V, VII)

fig2_fig4 = edgc_gradients.on("edgc_fig2_fig4")


@fig2_fig4("E8", "Section III, Figure 2", "to 3.3-4.3 and 1.8-3.8")
def _(e: Evidence) -> Effects:
    """The entropy of gradients falls over training, of GPT-2 and of BERT."""
    return every(below(m.figure("evolution.entropy_change"), 0.0) for m in e.each("model"))


@fig2_fig4("E9", "Section III, Figure 3", "Figure 3")
def _(e: Evidence) -> Effects:
    """The range of gradients narrows over training."""
    return every(below(m.figure("evolution.sigma_ratio"), 1.0) for m in e.each("model"))


@fig2_fig4("E10", "Section III, Figure 4", "Figure 4")
def _(e: Evidence) -> Effects:
    """Rows of GPT-2's gradients correlate early, less later, and more than random numbers."""
    e = e.where(model="gpt_345m")
    return every(
        below(e.figure("evolution.correlation_last"), e.figure("evolution.correlation_first")),
        above(e.figure("evolution.correlation_first"), e.figure("evolution.correlation_random")),
    )


@fig2_fig4(
    *("E11", "Section IV-D, Figure 10", "Figure 10"),
    foil=swap(metric=("evolution.power_over_theory", "evolution.random_over_theory")),
)
def _(e: Evidence) -> Effects:
    """PowerSGD loses less than theory says, on average over ranks and matrices."""
    return every(below(m.figure("evolution.power_over_theory"), 1.0) for m in e.each("model"))


fig9 = edgc_gradients.on("edgc_fig9")


@edgc_gradients.by_construction("edgc_fig9")("E12", "Section IV-D1, Figure 9", "2.85 %")
def _(e: Evidence) -> bool:
    """Communication time is linear in the rank, with a mean error of at most 2.85 % (modelled clock)."""
    e = e.where(network="simulated")
    error = line_error((r, e.allreduce_s(rank=r, case="median")) for r in e.axis("rank"))
    return float(error) <= 0.0285


@fig9(
    *("E12a", "Section IV-D1, Figure 9", "2.85 % on 32 Gbit/s"),
    unfailed="messages of every codec take times that are linear in their bytes, here and in the paper",
)
def _(e: Evidence) -> Effects:
    """Likewise on links of 100 Mbit/s, with a mean error of at most 10 %."""
    e = e.where(network="shaped")
    return at_most(line_error((r, e.allreduce_s(rank=r)) for r in e.axis("rank")), 0.1, null=1.0)


table5 = edgc_gradients.on("edgc_table5")


@table5("E13", "Section V-C1, Table V", "40 %", tolerance=0.125)
def _(e: Evidence) -> Effects:
    """A quarter of the coordinates takes 40 % less time."""
    return near(1 - quarter_over_all(e), 0.4, null=0.0)


@edgc_gradients.by_construction("edgc_table5")("E13a", "Section IV-B, V-C1", "94 %")
def _(e: Evidence) -> bool:
    """A quarter of the coordinates in a tenth of the steps saves at least 90 % of the time."""
    return float(1 - 0.1 * quarter_over_all(e)) >= 0.9


@printed("E13b", "Section IV-B, Table V", "46.85 against 78.14 ms")
def _(e: Evidence) -> bool:
    """The printed times make 94 % with α = 0.1."""
    quarter = e.paper("edgc/table5", setting="beta=0.25") / e.paper("edgc/table5", setting="beta=1.0")
    return close(1 - 0.1 * quarter, 0.94, 0.005)


table7 = edgc_gradients.on("edgc_table7")


@table7(
    *("E14", "Section V-C1, Figure 12a", "Figure 12a"),
    unfailed="a twentieth is the lowest rate recorded, and a quarter and a half keep the course, too",
)
def _(e: Evidence) -> Effects:
    """The entropy keeps its course with a twentieth of the coordinates (correlation of at least 0.9)."""
    return every(
        at_least(m.figure("sampling.rate_correlation", case="β=0.05"), 0.9, null=0.0) for m in e.each("model")
    )


@table7("E14a", "Section V-C1, Figure 12b", "> 5 %")
def _(e: Evidence) -> Effects:
    """With α = 0.05 the mean of a window is more than 5 % off somewhere, with α = 0.1 it is not."""
    return every(
        every(
            at_least(m.figure("sampling.relative_change", case="α=0.05"), 0.05, null=0.0),
            at_most(m.figure("sampling.relative_change", case="α=0.1"), 0.05, null=1.0),
        )
        for m in e.each("model")
    )


@fig2_fig4("E15", "Section IV-D3, Figure 10", "Figure 10")
def _(e: Evidence) -> Effects:
    """What low ranks lose falls over training, and alike in all layers (correlation above 0.5)."""
    e = e.where(model="gpt_345m")
    return every(
        below(e.figure("evolution.error_change"), 1.0),
        at_least(e.figure("evolution.layer_agreement"), 0.5, null=0.0),
    )


@table7(
    "E17",
    "Section V-C3, Table VII",
    "0.943, 0.981; 0.800, 0.963",
    foil=swap(case=("w=50", "w=125")),
)
def _(e: Evidence) -> Effects:
    """Means over the usual window follow the entropy (correlation above 0.9), and better than windows
    2.5 times as long."""
    return every(
        every(
            at_least(m.figure("sampling.window_correlation", case="w=50"), 0.9, null=0.0),
            above(
                m.figure("sampling.window_correlation", case="w=50"),
                m.figure("sampling.window_correlation", case="w=125"),
            ),
        )
        for m in e.each("model")
    )


@table7(
    *("E17a", "Section V-C3, Table VII", "0.0059 to 1.2181, 0.0066 to 0.8750"),
    foil=swap(case=("w=125", "w=1")),  # single steps in place of the longest window
)
def _(e: Evidence) -> Effects:
    """The longer the window the larger its mean squared error."""
    return every(
        rises(w.figure("sampling.window_mse", model=m) for w in e.each(case=("w=5", "w=25", "w=50", "w=125")))
        for m in e.axis("model")
    )


# EDGC: ranks (Table VI, Figures 13, 14)

table6 = edgc_gradients.on("edgc_table6")


@table6("E16", "Section V-C2, Figure 13", "Figure 13", foil=swap(rank=(8, 32)))
def _(e: Evidence) -> Effects:
    """The smallest rank of PowerSGD has the worst perplexity, with every seed."""
    return every(above(ranked(e, 8), ranked(e, r)) for r in (16, 32))


@table6("E16a", "Section V-C2, Figure 13", "Figure 13", active=ranks_move)
def _(e: Evidence) -> Effects:
    """EDGC's perplexity is that of PowerSGD at EDGC's largest rank (a fifth at most of what the smallest
    adds)."""
    return spared(e.last("perplexity", codec="edgc"), ranked(e, 32), ranked(e, 8))


@table6("E16b", "Table VI", "1.8750 against 3.0167 h", active=ranks_move)
def _(e: Evidence) -> Effects:
    """EDGC's communication takes 0.62 of the time of its largest rank."""
    share = e.exposed_comm_s(codec="edgc") / e.exposed_comm_s(codec="powersgd", rank=32)
    return near(share, 1.875 / 3.0167, null=1.0)


@printed("E16c", "Table VI", "3.0167, 1.4833, 0.7417 h")
def _(e: Evidence) -> bool:
    """Communication time is proportional to the rank (within 2 %)."""
    return every(
        abs(e.paper("edgc/table6", method="Rank=64") / e.paper("edgc/table6", method=m) / times - 1) < 0.02
        for m, times in (("Rank=32", 2), ("Rank=16", 4))
    )


fig14 = edgc_gradients.on("edgc_fig14")


@fig14("E18", "Section V-C3, Figure 14", "> 10 % by 18,000 iterations")
def _(e: Evidence) -> Effects:
    """In the last half of a run aligned stages have a smaller error than stages with the same rank, by
    at least 10 %."""
    aligned, shared = (e.during("vnmse", 0.5, 1, alignment=a) for a in ("aligned", "shared"))
    return at_most(aligned / shared, 0.9, null=1.0)


@fig14("E18a", "Section V-C3, Figure 14", "Figure 14", foil=swap(alignment=("aligned", "own")))
def _(e: Evidence) -> Effects:
    """It is smaller with every seed."""
    return below(*(e.during("vnmse", 0.5, 1, alignment=a) for a in ("aligned", "shared")))


@printed("E19", "Footnote 1", "r_max / 6 to r_max / 4")
def _(e: Evidence) -> bool:
    """The smallest rank of Figure 13 is between a sixth and a quarter of the largest one."""
    return (
        1 / 6
        <= e.paper("edgc/figures_text", item="Section V-C2 / Figure 13", metric="r_min")
        / e.paper("edgc/figures_text", item="Section V-C2 / Figure 13", metric="r_max")
        <= 1 / 4
    )


edgc_gradients.without_predicate(
    "E21",
    "Section IV-D2",
    "The first tenth of a run is uncompressed.",
    "10 %",
    (
        "no record of a sweep has single steps' bits; tests/codecs/test_edgc_ranks.py holds the warm-up"
        " to its floor"
    ),
)

edgc_gradients.without_predicate(
    "E22",
    "Section IV-C",
    ("The error at rank r follows from the law of Marchenko and Pastur (Lemma 1, Theorems 1 to 3, Lemma 2)."),
    "within 2 % of random matrices",
    (
        "no sweep makes random matrices; the tests of codecs/edgc/quantification.py hold g(r) to their "
        "singular values"
    ),
)
