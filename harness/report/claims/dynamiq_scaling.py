"""DynamiQ's claims about shared networks, scaling and single techniques, and its text against its tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.dynamiq import OTHERS, ends_like_bf16, less_time
from gradwire.harness.report.claims.evidence import Evidence, below, every, exponent, falls, near, sooner
from gradwire.harness.report.evaluation import SeedFigure

MX = ("mxfp8", "mxfp6", "mxfp4")
WORKLOADS = (
    ("BERT-large", "Wikitext-103"),
    ("LLaMA 1B", "UltraChat"),
    ("Gemma 1B", "UltraChat"),
    ("LLaMA 1B", "MMLU"),
)
"""The models and data of Table 3."""

TECHNIQUES = (
    {"codec": "uniform", "values": "uniform"},
    {"codec": "uniform", "values": "nonuniform"},
    {"codec": "dynamiq", "bits": 4.5, "group": 32, "scales": "bf16"},
    {"codec": "dynamiq", "bits": 4.5, "scales": "hierarchical", "rounding": "independent"},
    {"codec": "dynamiq", "bits": 4.5, "rounding": "correlated"},
)
"""The rows of Table 6: each adds a technique to the one before."""

dynamiq_scaling = Claims("DynamiQ")


def nearest(figures: Callable[[str], SeedFigure]) -> bool:
    """Returns whether no other codec's figure is nearer to BF16's than DynamiQ's."""
    return every(near(figures("dynamiq"), figures("bf16"), abs(figures(c) - figures("bf16"))) for c in OTHERS)


def gain(e: Evidence, factor: float, jobs: int) -> SeedFigure:
    """The share of MXFP8's time to accuracy that DynamiQ saves beside background jobs."""
    return 1 - e.tta(factor, codec="dynamiq", background_jobs=jobs) / e.tta(
        factor, codec="mxfp8", background_jobs=jobs
    )


def growth(e: Evidence, codec: str, workers: tuple[int, ...]) -> float:
    """The power of the number of workers with which a codec's error grows."""
    return exponent((n, e.vnmse(workers=n, codec=codec)) for n in workers)


def ablated(e: Evidence, technique: int) -> SeedFigure:
    """The error of a row of Table 6."""
    return e.vnmse(**TECHNIQUES[technique])


def workloads(e: Evidence) -> Iterator[Evidence]:
    """The evidence of each model of Table 6, at each step whose gradients were kept."""
    for model in e.each(model=("llama1b", "llama1b_mmlu")):
        yield from model.each("gradients")


def printed_error(e: Evidence, method: str, model: str, dataset: str) -> float:
    """The error that Table 3 prints."""
    return e.paper("dynamiq/table3", method=method, model=model, dataset=dataset)


def printed_ablated(e: Evidence, method: str, dataset: str) -> float:
    """The error that Table 6 prints."""
    return e.paper("dynamiq/table6", method=method, dataset=dataset)


printed = dynamiq_scaling.on()

# DynamiQ, Figures 8 and 15: a shared network

fig8 = dynamiq_scaling.on("dynamiq_fig8")


@fig8("D14", "Section 5.2, Figure 8", "16 to 21.5 %")
def _(e: Evidence) -> bool:
    """On Gemma 1B DynamiQ's gain over MXFP8 in time to accuracy grows with three background jobs."""
    e = e.where(model="gemma1b")
    return gain(e, 1.05, jobs=3) > gain(e, 1.05, jobs=0)


@fig8("D14b", "Section 5.2, Figure 8", "34.5 to 40.2 %", size="paper")
def _(e: Evidence) -> bool:
    """On LLaMA 1B and MMLU DynamiQ's gain over MXFP8 in time to accuracy grows with three background
    jobs."""
    e = e.where(model="llama1b_mmlu")
    return gain(e, 0.99, jobs=3) > gain(e, 0.99, jobs=0)


@fig8("D14a", "Section 5.2, Figure 8", "a plot, no number")
def _(e: Evidence) -> bool:
    """The milliseconds that DynamiQ saves BF16 in a step grow with three background jobs."""
    return every(
        m.step_time_s(codec="bf16", background_jobs=3) - m.step_time_s(codec="dynamiq", background_jobs=3)
        > m.step_time_s(codec="bf16", background_jobs=0) - m.step_time_s(codec="dynamiq", background_jobs=0)
        for m in e.each("model")
    )


@fig8("D15", "Section 5.2, Figure 15", "< 4")
def _(e: Evidence) -> bool:
    """With three background jobs no codec's exposed communication is four times as long as alone."""
    return every(
        e.exposed_comm_s(model=m, codec=c, background_jobs=3)
        < 4 * e.exposed_comm_s(model=m, codec=c, background_jobs=0)
        for m, c in e.axis("model", "codec")
    )


# DynamiQ, Figures 9, 16 and Table 5: the butterfly

table5 = dynamiq_scaling.on("dynamiq_table5")


@table5("D16", "Section 5.3, Figure 9", "12.0 %, 37.8 %", size="paper")
def _(e: Evidence) -> bool:
    """On the butterfly DynamiQ takes 12.0 % less time than MXFP8 to 99 % and 37.8 % less to 99.5 % of
    BF16's accuracy (within 5 points)."""
    e = e.where(topology="butterfly", workers=8)
    return every(near(less_time(e, f, "mxfp8"), less, 0.05) for f, less in ((0.99, 0.12), (0.995, 0.378)))


@table5("D16a", "Section 5.3, Figure 9", "12.0 %, 37.8 % less time", size="paper")
def _(e: Evidence) -> bool:
    """On the butterfly DynamiQ reaches 99 % and 99.5 % of BF16's accuracy before MXFP8 does."""
    e = e.where(topology="butterfly", workers=8)
    return every(sooner(e, f, "dynamiq", "mxfp8") for f in (0.99, 0.995))


@table5("D17", "Section 5.3, Table 5", "73.04 = 73.04 > 72.86 > 72.46 > 71.59 %", size="paper")
def _(e: Evidence) -> bool:
    """On the butterfly DynamiQ ends as accurate as BF16 (within 0.1 %) and MXFP8, MXFP6 and MXFP4 end
    below."""
    e = e.where(topology="butterfly", workers=8)
    return every(ends_like_bf16(e), every(e.final_metric(codec=c) < e.final_metric(codec="bf16") for c in MX))


@table5(
    "D18",
    "Section 5.3, Tables 3 and 5, Appendix B",
    "DynamiQ 0.00067 against 0.00096, MXFP8 0.00203 against 0.00299",
)
def _(e: Evidence) -> bool:
    """Between eight workers the errors of DynamiQ and the MX formats are lower on the butterfly than on
    the ring."""
    return every(
        c.vnmse(topology="butterfly", workers=8) < c.vnmse(topology="ring", workers=8)
        for c in e.each(codec=("dynamiq", *MX))
    )


@table5("D18a", "Section 5.3, Tables 3 and 5", "0.00067 against 0.00096")
def _(e: Evidence) -> bool:
    """Between eight workers DynamiQ's error is lower on the butterfly than on the ring, with every seed."""
    e = e.where(workers=8, codec="dynamiq")
    return below(e.vnmse(topology="butterfly"), e.vnmse(topology="ring"))


@table5("D25", "Appendix B", "bounds of the squared error of the sum, n^3 against n^2")
def _(e: Evidence) -> bool:
    """From four to eight workers the errors of DynamiQ and the MX formats grow faster on the ring than
    on the butterfly."""
    return every(
        c.vnmse(topology="ring", workers=8) / c.vnmse(topology="ring", workers=4)
        > c.vnmse(topology="butterfly", workers=8) / c.vnmse(topology="butterfly", workers=4)
        for c in e.each(codec=("dynamiq", *MX))
    )


# DynamiQ, Figures 10 and 11: scaling

fig10 = dynamiq_scaling.on("dynamiq_fig10")


@fig10("D19", "Section 6.1, Figure 10", "a plot, no number")
def _(e: Evidence) -> bool:
    """From two to eight workers DynamiQ's error grows with a smaller power of their number than those of
    the MX formats, THC and OmniReduce."""
    return every(growth(e, "dynamiq", (2, 4, 8)) < growth(e, c, (2, 4, 8)) for c in OTHERS)


@fig10("D19a", "Section 6.1, Figure 10", "a plot, no number", size="paper")
def _(e: Evidence) -> bool:
    """With eight workers DynamiQ's accuracy is within 0.1 % of BF16's, and no other codec's is nearer to
    it."""
    e = e.where(workers=8)
    return every(ends_like_bf16(e), nearest(lambda codec: e.final_metric(codec=codec)))


fig11 = dynamiq_scaling.on("dynamiq_fig11")


@fig11("D20", "Section 6.1, Figure 11", "a plot, no number")
def _(e: Evidence) -> bool:
    """From eight to 64 workers DynamiQ has the lowest error of all compressing codecs."""
    return every(
        n.vnmse(codec="dynamiq") < n.vnmse(codec=c) for n in e.each(workers=(8, 16, 32, 64)) for c in OTHERS
    )


@fig11("D20a", "Section 6.1, Figure 11", "a plot, no number", size="paper")
def _(e: Evidence) -> bool:
    """With 64 workers no codec's loss is nearer to BF16's than DynamiQ's."""
    e = e.where(workers=64)
    return nearest(lambda codec: e.last("loss", codec=codec))


@fig11("D21", "Section 6.1, Figure 11", "a plot, no number")
def _(e: Evidence) -> bool:
    """From eight to 64 workers the errors of THC and OmniReduce grow slower than those of MXFP8, MXFP6
    and MXFP4."""
    return every(
        growth(e, slow, (8, 16, 32, 64)) < growth(e, c, (8, 16, 32, 64))
        for slow in ("thc", "omnireduce")
        for c in MX
    )


# DynamiQ, Figure 12 and Table 6: one technique after another

table6 = dynamiq_scaling.on("dynamiq_table6")


@table6(
    "D22",
    "Section 6.2, Table 6",
    ("0.1278 > 0.0707 > 0.0198 > 0.0138 > 0.0091 (chat), 0.1207 > 0.0664 > 0.0130 > 0.0092 > 0.0059 (MMLU)"),
)
def _(e: Evidence) -> bool:
    """Every technique that is added lowers the error."""
    return every(falls(ablated(m, row) for row in range(5)) for m in workloads(e))


@table6("D22a", "Section 6.2, Table 6", "14 times (chat), 22 times (MMLU; 20.5 by the table's cells)")
def _(e: Evidence) -> bool:
    """All techniques together lower uniform quantization's error to a tenth or less."""
    return every(ablated(m, 0) >= 10 * ablated(m, 4) for m in workloads(e))


@table6(
    "D22b",
    "Section 6.2, Table 6",
    "3.5 to 5.1 times; non-uniform values 1.8, hierarchical scales 1.4, correlated rounding 1.5 times",
)
def _(e: Evidence) -> bool:
    """Variable widths divide the error by more than any other technique does."""
    return every(
        ablated(m, 1) / ablated(m, 2) > max(ablated(m, row) / ablated(m, row + 1) for row in (0, 2, 3))
        for m in workloads(e)
    )


# DynamiQ's text against its own tables


@printed("DX1", "Abstract, Section 5.1", "34.2 % in the abstract, 34.5 % in Section 5.1")
def _(e: Evidence) -> bool:
    """The largest gain over the best other method is the same in the abstract as in the evaluation."""
    return e.paper("dynamiq/figures_text", metric="time_to_accuracy_improvement_max") == e.paper(
        "dynamiq/figures_text", item="Section 5.1", model="LLaMA 1B", method="DynamiQ vs MXFP8"
    )


@printed("DX2", "Section 5.1, Table 3", "2.5 to 3; Table 3's cells give 2.15 to 3.11")
def _(e: Evidence) -> bool:
    """In every workload of Table 3 MXFP8's error is 2.5 to 3 times DynamiQ's."""
    return every(
        2.5 <= printed_error(e, "MXFP8", *workload) / printed_error(e, "DynamiQ", *workload) <= 3
        for workload in WORKLOADS
    )


@printed("DX3", "Section 5.1, Table 3", "orders of magnitude; THC on BERT-large has 4.1 times DynamiQ's")
def _(e: Evidence) -> bool:
    """In every workload of Table 3 MXFP4, THC and OmniReduce have at least ten times DynamiQ's error."""
    return every(
        printed_error(e, c, *workload) >= 10 * printed_error(e, "DynamiQ", *workload)
        for c in ("MXFP4", "THC", "OR")
        for workload in WORKLOADS
    )


@printed("DX4", "Sections 5.1, 5.2", "18 % in Section 5.1, 16 % in Section 5.2")
def _(e: Evidence) -> bool:
    """The gain over MXFP8 on Gemma 1B in isolation is the same in both sections."""
    return e.paper(
        "dynamiq/figures_text", item="Section 5.1", model="Gemma 1B", method="DynamiQ vs MXFP8"
    ) == e.paper("dynamiq/figures_text", item="Section 5.2", model="Gemma 1B", setting="ring, isolated")


@printed("DX5", "Section 5.1, Figure 4", "72.38 %; 99 % of 73.04 % is 72.31 %")
def _(e: Evidence) -> bool:
    """The target of 72.38 % is 99 % of BF16's final accuracy."""
    return abs(0.99 * e.paper("dynamiq/table5", method="BF16", metric="final_accuracy") - 72.38) < 0.005


@printed("DX6", "Figure 4", "3.22; 1.05 times 3.107 is 3.26")
def _(e: Evidence) -> bool:
    """The perplexity target for BERT-large is 1.05 times BF16's final perplexity."""
    return (
        abs(
            1.05 * e.paper("dynamiq/figures_text", metric="final_metric_bf16", model="BERT-large")
            - e.paper("dynamiq/figures_text", metric="target_perplexity")
        )
        < 0.005
    )


@printed("DX7", "Section 6.2, Table 6", "14, 22; Table 6's cells give 14.0 and 20.5")
def _(e: Evidence) -> bool:
    """Uniform quantization has 14 (chat) and 22 (MMLU) times the error of the whole of DynamiQ."""
    return every(
        near(
            printed_ablated(e, "Uniform quantization", d) / printed_ablated(e, "+ Correlated rounding", d),
            times,
            0.5,
        )
        for d, times in (("UltraChat", 14), ("MMLU", 22))
    )


@printed("DX8", "Section 5.3, Tables 3 and 5", "MXFP6 0.02008 against 0.01298, MXFP4 0.17058 against 0.09039")
def _(e: Evidence) -> bool:
    """On LLaMA 1B and MMLU every codec's printed error is lower on the butterfly than on the ring."""
    return every(
        e.paper("dynamiq/table5", method=c, metric="vNMSE") < printed_error(e, c, "LLaMA 1B", "MMLU")
        for c in ("DynamiQ", "MXFP8", "MXFP6", "MXFP4")
    )


@printed("DX9", "Section 3.2", "5/32; the example gives 5/16")
def _(e: Evidence) -> bool:
    """The worked example, T12 3/16 = T24 15/256, gives the printed ratio 5/32."""
    return 15 / 256 / (3 / 16) == 5 / 32


@printed("DX10", "Tables 3, 4 and 6", "0.0059 against 0.00096; Table 4 has 0.00589 at 4 bits")
def _(e: Evidence) -> bool:
    """The last row of the ablation has at most the error of DynamiQ at its default budget of 5 bits."""
    return e.paper("dynamiq/table6", method="+ Correlated rounding", dataset="MMLU") <= 1.05 * e.paper(
        "dynamiq/table3", method="DynamiQ", dataset="MMLU"
    )


@printed("DX11", "Tables 3 and 4", "0.00096, 0.00122; 0.00299, 0.00308")
def _(e: Evidence) -> bool:
    """Both tables print the same error for DynamiQ at 5 bits and for MXFP8."""
    return every(
        e.paper("dynamiq/table4", method=row, dataset=d, metric="vNMSE") == printed_error(e, c, m, d)
        for row, c in (("DynamiQ 5b", "DynamiQ"), ("MXFP8", "MXFP8"))
        for m, d in (("LLaMA 1B", "MMLU"), ("Gemma 1B", "UltraChat"))
    )


@printed("DX12", "Section 6.2, Table 6", "45 %, 30 %, 35 %")
def _(e: Evidence) -> bool:
    """The steps of the ablation are as large in the table as in the text, within one point."""
    return every(
        near(1 - printed_ablated(e, after, d) / printed_ablated(e, before, d), less, 0.01)
        for before, after, less in (
            ("Uniform quantization", "Non-uniform quantization", 0.45),
            ("+ Variable bitwidth allocation", "+ Hierarchical quantization", 0.3),
            ("+ Hierarchical quantization", "+ Correlated rounding", 0.35),
        )
        for d in ("UltraChat", "MMLU")
    )


@printed("DX13", "Figure 4, Table 5", "73.04 % and 73.04 %")
def _(e: Evidence) -> bool:
    """BF16 ends with the same accuracy on the ring and on the butterfly, whose sums differ in rounding
    alone."""
    return e.paper("dynamiq/figures_text", metric="final_metric_bf16", dataset="MMLU") == e.paper(
        "dynamiq/table5", method="BF16", metric="final_accuracy"
    )


@printed("DX14", "Section 6.1", "up to n = 64; 12 bits suffice up to n = 273")
def _(e: Evidence) -> bool:
    """THC's 12 bits, enough for log2(15 n + 1), no longer suffice beyond 64 workers."""
    return math.ceil(math.log2(15 * 65 + 1)) > 12


@printed("DX15", "Section 6.1", "12 bits for n > 8; 8 bits suffice up to n = 17")
def _(e: Evidence) -> bool:
    """Beyond eight workers THC's sums need more than 8 bits."""
    return every(math.ceil(math.log2(15 * n + 1)) > 8 for n in (9, 16))
