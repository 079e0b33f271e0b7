"""DynamiQ's claims about shared networks, the butterfly, and scaling."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.harness.report.claims.claim import Chance, Claims
from gradwire.harness.report.claims.dynamiq import OTHERS, ends_like_bf16, instead, less_time, mmlu
from gradwire.harness.report.claims.effects import (
    Effects,
    Number,
    above,
    below,
    every,
    near,
    sooner,
)
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.claims.fits import exponent
from gradwire.harness.report.evaluation import SeedFigure

MX = ("mxfp8", "mxfp6", "mxfp4")
dynamiq_scaling = Claims("DynamiQ")


def nearest(figures: Callable[[str], SeedFigure]) -> Effects:
    """No other codec's figure is nearer to BF16's than DynamiQ's."""

    def distance(codec: str) -> SeedFigure:
        return figures(codec).combined(figures("bf16"), lambda own, exact: abs(own - exact))

    return every(below(distance("dynamiq"), distance(c)) for c in OTHERS)


def gain(e: Evidence, factor: float, jobs: int) -> SeedFigure:
    """The share of MXFP8's time to accuracy that DynamiQ saves beside background jobs."""
    return 1 - e.tta(factor, codec="dynamiq", background_jobs=jobs) / e.tta(
        factor, codec="mxfp8", background_jobs=jobs
    )


def growth(e: Evidence, codec: str, workers: tuple[int, ...]) -> Number:
    """The power of the number of workers with which a codec's error grows."""
    return exponent((n, e.vnmse(workers=n, codec=codec)) for n in workers)


# DynamiQ, Figures 8 and 15: a shared network

fig8 = dynamiq_scaling.on("dynamiq_fig8")


@fig8("D14", "Section 5.2, Figure 8", "16 to 21.5 %", foil=instead("mxfp4"))
def _(e: Evidence) -> Effects:
    """On Gemma 1B DynamiQ's gain over MXFP8 in time to accuracy grows with three background jobs."""
    e = e.where(model="gemma1b")
    return above(gain(e, 1.05, jobs=3), gain(e, 1.05, jobs=0))


@fig8(
    *("D14b", "Section 5.2, Figure 8", "34.5 to 40.2 %", "paper"),
    chance=mmlu(model="llama1b_mmlu", background_jobs=0),
    foil=instead("mxfp4"),
)
def _(e: Evidence) -> Effects:
    """On LLaMA 1B and MMLU DynamiQ's gain over MXFP8 in time to accuracy grows with three background
    jobs."""
    e = e.where(model="llama1b_mmlu")
    return above(gain(e, 0.99, jobs=3), gain(e, 0.99, jobs=0))


@fig8("D14a", "Section 5.2, Figure 8", "a plot, no number", foil=instead("mxfp8"))
def _(e: Evidence) -> Effects:
    """The milliseconds that DynamiQ saves BF16 in a step grow with three background jobs."""
    return every(
        above(
            m.step_time_s(codec="bf16", background_jobs=3)
            - m.step_time_s(codec="dynamiq", background_jobs=3),
            m.step_time_s(codec="bf16", background_jobs=0)
            - m.step_time_s(codec="dynamiq", background_jobs=0),
        )
        for m in e.each("model")
    )


@fig8("D15", "Section 5.2, Figure 15", "< 4")
def _(e: Evidence) -> Effects:
    """With three background jobs no codec's exposed communication is four times as long as alone."""
    return every(
        below(
            e.exposed_comm_s(model=m, codec=c, background_jobs=3),
            4 * e.exposed_comm_s(model=m, codec=c, background_jobs=0),
        )
        for m, c in e.axis("model", "codec")
    )


# DynamiQ, Figures 9, 16 and Table 5: the butterfly

table5 = dynamiq_scaling.on("dynamiq_table5")
BUTTERFLY = mmlu(topology="butterfly", workers=8)


@table5("D16", "Section 5.3, Figure 9", "12.0 %, 37.8 %", "paper", chance=BUTTERFLY, foil=instead("mxfp6"))
def _(e: Evidence) -> Effects:
    """On the butterfly DynamiQ takes 12.0 % less time than MXFP8 to 99 % and 37.8 % less to 99.5 % of
    BF16's accuracy."""
    e = e.where(topology="butterfly", workers=8)
    return every(near(less_time(e, f, "mxfp8"), less, null=0.0) for f, less in ((0.99, 0.12), (0.995, 0.378)))


@table5(
    *("D16a", "Section 5.3, Figure 9", "12.0 %, 37.8 % less time", "paper"),
    chance=BUTTERFLY,
    foil=instead("mxfp6"),
)
def _(e: Evidence) -> Effects:
    """On the butterfly DynamiQ reaches 99 % and 99.5 % of BF16's accuracy before MXFP8 does."""
    e = e.where(topology="butterfly", workers=8)
    return every(sooner(e, f, "dynamiq", "mxfp8") for f in (0.99, 0.995))


@table5(
    *("D17", "Section 5.3, Table 5", "73.04 = 73.04 > 72.86 > 72.46 > 71.59 %", "paper"),
    chance=BUTTERFLY,
    foil=swap(codec=("mxfp4", "dynamiq")),
)
def _(e: Evidence) -> Effects:
    """On the butterfly DynamiQ ends as accurate as BF16 (a fifth at most of what MXFP4 loses) and
    MXFP8, MXFP6 and MXFP4 end below."""
    e = e.where(topology="butterfly", workers=8)
    return every(
        ends_like_bf16(e), every(below(e.final_metric(codec=c), e.final_metric(codec="bf16")) for c in MX)
    )


@table5(
    "D18",
    "Section 5.3, Tables 3 and 5, Appendix B",
    "DynamiQ 0.00067 against 0.00096, MXFP8 0.00203 against 0.00299",
    foil=swap(topology=("butterfly", "ring"), workers=(8, 4)),
)
def _(e: Evidence) -> Effects:
    """Between eight workers the errors of DynamiQ and the MX formats are lower on the butterfly than on
    the ring."""
    return every(
        below(c.vnmse(topology="butterfly", workers=8), c.vnmse(topology="ring", workers=8))
        for c in e.each(codec=("dynamiq", *MX))
    )


@table5("D18a", "Section 5.3, Tables 3 and 5", "0.00067 against 0.00096", foil=instead("mxfp4"))
def _(e: Evidence) -> Effects:
    """Between eight workers DynamiQ's error is lower on the butterfly than on the ring, with every seed."""
    e = e.where(workers=8, codec="dynamiq")
    return below(e.vnmse(topology="butterfly"), e.vnmse(topology="ring"))


@table5("D25", "Appendix B", "bounds of the squared error of the sum, n^3 against n^2")
def _(e: Evidence) -> Effects:
    """From four to eight workers the errors of DynamiQ and the MX formats grow faster on the ring than
    on the butterfly."""
    return every(
        above(
            c.vnmse(topology="ring", workers=8) / c.vnmse(topology="ring", workers=4),
            c.vnmse(topology="butterfly", workers=8) / c.vnmse(topology="butterfly", workers=4),
        )
        for c in e.each(codec=("dynamiq", *MX))
    )


# DynamiQ, Figures 10 and 11: scaling

fig10 = dynamiq_scaling.on("dynamiq_fig10")


@fig10("D19", "Section 6.1, Figure 10", "a plot, no number", foil=instead("mxfp8"))
def _(e: Evidence) -> Effects:
    """From two to eight workers DynamiQ's error grows with a smaller power of their number than those of
    the MX formats, THC and OmniReduce."""
    return every(below(growth(e, "dynamiq", (2, 4, 8)), growth(e, c, (2, 4, 8))) for c in OTHERS)


@fig10(
    *("D19a", "Section 6.1, Figure 10", "a plot, no number", "paper"),
    chance=mmlu(workers=8),
    foil=instead("mxfp8"),
)
def _(e: Evidence) -> Effects:
    """With eight workers DynamiQ's accuracy is BF16's (a fifth at most of what MXFP4 loses), and no other
    codec's is nearer to it."""
    e = e.where(workers=8)
    return every(ends_like_bf16(e), nearest(lambda codec: e.final_metric(codec=codec)))


fig11 = dynamiq_scaling.on("dynamiq_fig11")


@fig11("D20", "Section 6.1, Figure 11", "a plot, no number", foil=instead("mxfp6"))
def _(e: Evidence) -> Effects:
    """From eight to 64 workers DynamiQ has the lowest error of all compressing codecs."""
    return every(
        below(n.vnmse(codec="dynamiq"), n.vnmse(codec=c))
        for n in e.each(workers=(8, 16, 32, 64))
        for c in OTHERS
    )


SST2 = Chance(0.5, 256, lambda e: e.final_metric(codec="bf16", workers=64))
"""Guesses between the two answers to SST-2's sentences."""


@fig11(
    *("D20a", "Section 6.1, Figure 11", "a plot, no number", "paper"),
    chance=SST2,
    foil=instead("mxfp4"),
)
def _(e: Evidence) -> Effects:
    """With 64 workers no codec's loss is nearer to BF16's than DynamiQ's."""
    e = e.where(workers=64)
    return nearest(lambda codec: e.last("loss", codec=codec))


@fig11("D21", "Section 6.1, Figure 11", "a plot, no number", foil=swap(codec=("thc", "dynamiq")))
def _(e: Evidence) -> Effects:
    """From eight to 64 workers the errors of THC and OmniReduce grow slower than those of MXFP8, MXFP6
    and MXFP4."""
    return every(
        below(growth(e, slow, (8, 16, 32, 64)), growth(e, c, (8, 16, 32, 64)))
        for slow in ("thc", "omnireduce")
        for c in MX
    )
