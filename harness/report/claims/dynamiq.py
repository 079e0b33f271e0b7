"""DynamiQ's claims about training on a ring.

Claims about accuracy need size=paper: models trained from random weights for minutes only guess on MMLU.
"""

from __future__ import annotations

from typing import Any

from gradwire.harness.report.claims.claim import Chance, Claims
from gradwire.harness.report.claims.effects import (
    Effects,
    above,
    at_least,
    below,
    every,
    near,
    rises,
    sooner,
    spared,
)
from gradwire.harness.report.claims.evidence import Evidence, Foil, swap
from gradwire.harness.report.evaluation import SeedFigure

WITH_PERPLEXITY = ("bert_large", "llama1b", "gemma1b")
OTHERS = ("mxfp8", "mxfp6", "mxfp4", "thc", "omnireduce")
"""The codecs that DynamiQ is compared with."""

dynamiq = Claims("DynamiQ")


def instead(codec: str) -> Foil:
    """A foil: another codec in place of DynamiQ."""
    return swap({"bits": None}, codec=("dynamiq", codec))


def mmlu(**cells: Any) -> Chance:
    """Guesses on MMLU's questions of four answers; `cells` are those of BF16."""
    return Chance(0.25, 256, lambda e: e.final_metric(codec="bf16", **cells))


MMLU = mmlu(model="llama1b_mmlu")


def less_time(e: Evidence, factor: float, than: str) -> SeedFigure:
    """The share of another codec's time to accuracy that DynamiQ saves."""
    return 1 - e.tta(factor, codec="dynamiq") / e.tta(factor, codec=than)


def ends_like_bf16(e: Evidence) -> Effects:
    """DynamiQ ends with BF16's metric, where MXFP4 shows what harm is."""
    return spared(*(e.final_metric(codec=c) for c in ("dynamiq", "bf16", "mxfp4")))


@dynamiq.by_construction()("D7", "Section 3", "< 1 %")
def _(e: Evidence) -> bool:
    """The first all-reduce carries less than 1 % of the gradient."""
    return 2 * 16 / 256 / 16 < 0.01  # a mean and a norm of 16 bits for 256 coordinates of 16 bits


@dynamiq.of_print()(
    "D10", "Section 5.1, Table 2", "22 + 11.875 AR against 18 + 13 AR bytes per coordinate, AR = (n - 1) / n"
)
def _(e: Evidence) -> bool:
    """DynamiQ's memory traffic is on a par with MXFP8's (by the printed formulas, within 10 % at 8
    workers)."""

    def bytes_of(method: str) -> float:
        constant = e.paper("dynamiq/table2", method=method, metric="const")
        return constant + 7 / 8 * e.paper("dynamiq/table2", method=method, metric="slope")

    return bytes_of("DynamiQ") <= 1.1 * bytes_of("MXFP8")


dynamiq.without_predicate(
    "D26",
    "Section 2.4",
    "A negatively correlated pair has no variance at one half, and at most a quarter anywhere.",
    "0 at x = 1/2; at most 1/4",
    "no sweep records single roundings; tests/codecs/test_dynamiq_rounding.py checks the strata exactly",
)


@dynamiq.by_construction()("D27", "Section 3.2", "5/32, 17/512, 257/2^17")
def _(e: Evidence) -> bool:
    """Equal benefit per bit puts the thresholds between widths in the ratios 5/32, 17/512 and 257/2^17."""
    return all(
        abs((4 ** (2 * a) - 1) / (4 ** (4 * a) * 2 * a) / ((4**a - 1) / (4 ** (2 * a) * a)) - ratio) < 1e-12
        for a, ratio in ((1, 5 / 32), (2, 17 / 512), (4, 257 / 2**17))
    )


# DynamiQ, Figures 4, 5, 14, 18 and Table 3: four workloads on a ring

fig4_fig5 = dynamiq.on("dynamiq_fig4_fig5")


@fig4_fig5(
    *("D1", "Section 5.1", "34.5 % (34.2 % in the abstract)", "paper"),
    tolerance=0.14,
    chance=MMLU,
    foil=instead("mxfp6"),
)
def _(e: Evidence) -> Effects:
    """On LLaMA 1B and MMLU DynamiQ takes 34.5 % less time than MXFP8 to 99 % of BF16's accuracy."""
    return near(less_time(e.where(model="llama1b_mmlu"), 0.99, "mxfp8"), 0.345, null=0.0)


@fig4_fig5("D2", "Sections 1, 5.1", "40.8 %", "paper", tolerance=0.12, chance=MMLU, foil=instead("mxfp8"))
def _(e: Evidence) -> Effects:
    """On LLaMA 1B and MMLU DynamiQ takes 40.8 % less time than BF16 to 99 % of BF16's accuracy."""
    return near(less_time(e.where(model="llama1b_mmlu"), 0.99, "bf16"), 0.408, null=0.0)


@fig4_fig5("D2a", "Figures 4, 5", "earlier in all three", foil=instead("omnireduce"))
def _(e: Evidence) -> Effects:
    """In every workload with a perplexity and with every seed DynamiQ reaches the first target before
    BF16 does."""
    return every(sooner(m, 1.05, "dynamiq", "bf16") for m in e.each(model=WITH_PERPLEXITY))


@fig4_fig5("D3", "Abstract, Section 5.1", "0.1 %")
def _(e: Evidence) -> Effects:
    """DynamiQ ends with BF16's perplexity in every workload that has one (a fifth at most of what MXFP4
    adds)."""
    return every(ends_like_bf16(m) for m in e.each(model=WITH_PERPLEXITY))


@fig4_fig5("D3a", "Abstract, Section 5.1", "0.1 %", "paper", chance=MMLU)
def _(e: Evidence) -> Effects:
    """On LLaMA 1B and MMLU DynamiQ ends with BF16's accuracy (a fifth at most of what MXFP4 loses)."""
    return ends_like_bf16(e.where(model="llama1b_mmlu"))


@fig4_fig5("D4", "Section 5.1", "up to 2.5 %", foil=swap(codec=("omnireduce", "thc")))
def _(e: Evidence) -> Effects:
    """MXFP8, MXFP6, MXFP4, THC and OmniReduce end with at most 2.5 % more than BF16's perplexity."""
    return every(
        below(m.final_metric(codec=c) / m.final_metric(codec="bf16"), 1.025)
        for m in e.each(model=WITH_PERPLEXITY)
        for c in OTHERS
    )


@fig4_fig5("D4a", "Section 5.1", "up to 2.5 %", "paper", chance=MMLU)
def _(e: Evidence) -> Effects:
    """On LLaMA 1B and MMLU MXFP8, MXFP6, MXFP4, THC and OmniReduce lose at most 2.5 % of BF16's final
    accuracy."""
    e = e.where(model="llama1b_mmlu")
    return every(above(e.final_metric(codec=c) / e.final_metric(codec="bf16"), 0.975) for c in OTHERS)


@fig4_fig5(
    "D5", "Section 5.1", "18 %, 28 % (Section 5.2 has 16 %)", "paper", tolerance=0.1, foil=instead("mxfp4")
)
def _(e: Evidence) -> Effects:
    """On Gemma 1B DynamiQ takes 18 % less time than MXFP8 and 28 % less than MXFP6 to the target."""
    e = e.where(model="gemma1b")
    return every(
        near(less_time(e, 1.05, c), less, null=0.0) for c, less in (("mxfp8", 0.18), ("mxfp6", 0.28))
    )


@fig4_fig5("D5a", "Section 5.1", "18 %, 28 % less time", foil=instead("omnireduce"))
def _(e: Evidence) -> Effects:
    """On Gemma 1B DynamiQ reaches the target before MXFP8 and before MXFP6."""
    return every(sooner(e.where(model="gemma1b"), 1.05, "dynamiq", c) for c in ("mxfp8", "mxfp6"))


@fig4_fig5("D6", "Section 5.1", "slower, or not reached", foil=swap(codec=("thc", "mxfp8")))
def _(e: Evidence) -> Effects:
    """On Gemma 1B THC, OmniReduce and MXFP4 reach the target after BF16 or never."""
    e = e.where(model="gemma1b")
    return every(sooner(e, 1.05, "bf16", c) for c in ("thc", "omnireduce", "mxfp4"))


@fig4_fig5(
    "D8", "Section 5.1, Table 3", "2.5 to 3 (Table 3's cells give 2.15 to 3.11)", foil=instead("mxfp6")
)
def _(e: Evidence) -> Effects:
    """MXFP8's error is 2.75 times DynamiQ's, the middle of what is printed, in every workload."""
    return every(
        near(m.vnmse(codec="mxfp8") / m.vnmse(codec="dynamiq"), 2.75, null=1.0) for m in e.each("model")
    )


@fig4_fig5("D8a", "Table 3", "0.00217 against 0.00591 and so on", foil=instead("mxfp6"))
def _(e: Evidence) -> Effects:
    """DynamiQ at 5 bits has a lower error than MXFP8 in every workload, with every seed."""
    return every(below(m.vnmse(codec="dynamiq"), m.vnmse(codec="mxfp8")) for m in e.each("model"))


@fig4_fig5(
    "D8b",
    "Table 3",
    "0.00591 < 0.02332 < 0.12080 and so on",
    foil=swap(codec=("mxfp4", "dynamiq")),
)
def _(e: Evidence) -> Effects:
    """In every workload MXFP8 has the lowest and MXFP4 the highest error of the three MX formats."""
    return every(
        rises(c.vnmse(model=m) for c in e.each(codec=("mxfp8", "mxfp6", "mxfp4"))) for m in e.axis("model")
    )


@fig4_fig5(
    "D9",
    "Section 5.1, Table 3",
    "orders of magnitude (Table 3's cells give 4.1 to 204)",
    foil=instead("mxfp6"),
)
def _(e: Evidence) -> Effects:
    """MXFP4, THC and OmniReduce have at least ten times DynamiQ's error in every workload."""
    return every(
        at_least(m.vnmse(codec=c) / m.vnmse(codec="dynamiq"), 10, null=1.0)
        for m in e.each("model")
        for c in ("mxfp4", "thc", "omnireduce")
    )


@fig4_fig5(
    "D11", "Section 5.1", "up to 42 % for the transform alone", "gpu", foil=swap(codec=("thc", "dynamiq"))
)
def _(e: Evidence) -> Effects:
    """THC's work, of which its transform is a part, takes 42 % of a round on LLaMA 1B."""
    e = e.where(model="llama1b", codec="thc")
    return near(e.compression_s() / e.step_time_s(), 0.42, null=0.0)


@fig4_fig5("D23", "Figure 18", "a plot, no number", foil=swap(codec=("omnireduce", "mxfp8")))
def _(e: Evidence) -> Effects:
    """OmniReduce's error is higher in the second half of training than in the first tenth; those of the
    other codecs are within a factor of two."""
    return every(
        every(
            above(
                m.during("vnmse", 0.5, 1, codec="omnireduce"), m.during("vnmse", 0, 0.1, codec="omnireduce")
            )
            for m in e.each("model")
        ),
        every(
            every(above(growth, 0.5), below(growth, 2.0))
            for m in e.each("model")
            for c in ("dynamiq", "mxfp8", "mxfp6", "mxfp4", "thc")
            for growth in [m.during("vnmse", 0.5, 1, codec=c) / m.during("vnmse", 0, 0.1, codec=c)]
        ),
    )


@fig4_fig5("D28", "Figures 5, 14", "a plot, no number", foil=instead("omnireduce"))
def _(e: Evidence) -> Effects:
    """DynamiQ reaches 1.05 times BF16's perplexity in every workload that has one, and stays below it."""
    return every(at_least(m.stays(1.05, codec="dynamiq"), 1, null=0.0) for m in e.each(model=WITH_PERPLEXITY))


@fig4_fig5("D28a", "Figures 5, 14", "a plot, no number", "paper", chance=MMLU, foil=instead("omnireduce"))
def _(e: Evidence) -> Effects:
    """DynamiQ reaches 99 % of BF16's accuracy on LLaMA 1B and MMLU, and stays above it."""
    return at_least(e.stays(0.99, model="llama1b_mmlu", codec="dynamiq"), 1, null=0.0)


@fig4_fig5("D30", "Section 5.1, Figure 6", "a plot, no number", foil=swap(codec=("mxfp4", "mxfp8")))
def _(e: Evidence) -> Effects:
    """In every workload with a perplexity MXFP4 makes more rounds per second than DynamiQ and ends with
    a worse one."""
    return every(
        every(
            above(m.rounds_per_second(codec="mxfp4"), m.rounds_per_second(codec="dynamiq")),
            above(m.final_metric(codec="mxfp4"), m.final_metric(codec="dynamiq")),
        )
        for m in e.each(model=WITH_PERPLEXITY)
    )


@fig4_fig5("D31", "Figures 4, 5", "earlier in all three", foil=instead("omnireduce"))
def _(e: Evidence) -> Effects:
    """DynamiQ reaches the first target before MXFP8 in every workload with a perplexity, with every
    seed."""
    return every(sooner(m, 1.05, "dynamiq", "mxfp8") for m in e.each(model=WITH_PERPLEXITY))
