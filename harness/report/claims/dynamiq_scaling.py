"""DynamiQ's claims about the butterfly, scaling and single techniques, and its text against its tables."""

from __future__ import annotations

import math

from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.evidence import Evidence, below, every, exponent, falls, near

dynamiq_scaling = Claims("DynamiQ")

printed = dynamiq_scaling.on()

# DynamiQ, Figures 9, 16 and Table 5: the butterfly

table5 = dynamiq_scaling.on("dynamiq_table5")


@table5("D16", "Section 5.3, Figure 9", "12.0 %, 37.8 %", size="paper")
def _(e: Evidence) -> bool:
    """On the butterfly DynamiQ takes 12.0 % less time than MXFP8 to 99 % and 37.8 % less to 99.5 % of
    BF16's accuracy (within 5 points)."""
    e = e.where(topology="butterfly", workers=8)
    return every(
        near(1 - (e.tta(f, codec="dynamiq") / e.tta(f, codec="mxfp8")).median, less, 0.05)
        for f, less in ((0.99, 0.12), (0.995, 0.378))
    )


@table5("D16a", "Section 5.3, Figure 9", "12.0 %, 37.8 % less time", size="paper")
def _(e: Evidence) -> bool:
    """On the butterfly DynamiQ reaches 99 % and 99.5 % of BF16's accuracy before MXFP8 does."""
    e = e.where(topology="butterfly", workers=8)
    return every(below(e.tta(f, codec="dynamiq"), e.tta(f, codec="mxfp8")) for f in (0.99, 0.995))


@table5("D17", "Section 5.3, Table 5", "73.04 = 73.04 > 72.86 > 72.46 > 71.59 %", size="paper")
def _(e: Evidence) -> bool:
    """On the butterfly DynamiQ ends as accurate as BF16 (within 0.1 %) and MXFP8, MXFP6 and MXFP4 end
    below."""
    e = e.where(topology="butterfly", workers=8)
    return every(
        near(e.final_metric(codec="dynamiq") / e.final_metric(codec="bf16"), 1, 0.001),
        every(e.final_metric(codec=c) < e.final_metric(codec="bf16") for c in ("mxfp8", "mxfp6", "mxfp4")),
    )


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
        for c in e.each(codec=("dynamiq", "mxfp8", "mxfp6", "mxfp4"))
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
        for c in e.each(codec=("dynamiq", "mxfp8", "mxfp6", "mxfp4"))
    )


# DynamiQ, Figures 10 and 11: scaling

fig10 = dynamiq_scaling.on("dynamiq_fig10")


@fig10("D19", "Section 6.1, Figure 10", "a plot, no number")
def _(e: Evidence) -> bool:
    """From two to eight workers DynamiQ's error grows with a smaller power of their number than those of
    the MX formats, THC and OmniReduce."""
    return every(
        exponent((n, e.vnmse(workers=n, codec="dynamiq")) for n in (2, 4, 8))
        < exponent((n, e.vnmse(workers=n, codec=c)) for n in (2, 4, 8))
        for c in ("mxfp8", "mxfp6", "mxfp4", "thc", "omnireduce")
    )


@fig10("D19a", "Section 6.1, Figure 10", "a plot, no number", size="paper")
def _(e: Evidence) -> bool:
    """With eight workers DynamiQ's accuracy is within 0.1 % of BF16's, and no other codec's is nearer to
    it."""
    e = e.where(workers=8)
    return every(
        near(e.final_metric(codec="dynamiq") / e.final_metric(codec="bf16"), 1, 0.001),
        every(
            near(
                e.final_metric(codec="dynamiq"),
                e.final_metric(codec="bf16"),
                abs(e.final_metric(codec=c) - e.final_metric(codec="bf16")),
            )
            for c in ("mxfp8", "mxfp6", "mxfp4", "thc", "omnireduce")
        ),
    )


fig11 = dynamiq_scaling.on("dynamiq_fig11")


@fig11("D20", "Section 6.1, Figure 11", "a plot, no number")
def _(e: Evidence) -> bool:
    """From eight to 64 workers DynamiQ has the lowest error of all compressing codecs."""
    return every(
        n.vnmse(codec="dynamiq") < n.vnmse(codec=c)
        for n in e.each(workers=(8, 16, 32, 64))
        for c in ("mxfp8", "mxfp6", "mxfp4", "thc", "omnireduce")
    )


@fig11("D20a", "Section 6.1, Figure 11", "a plot, no number", size="paper")
def _(e: Evidence) -> bool:
    """With 64 workers no codec's loss is nearer to BF16's than DynamiQ's."""
    e = e.where(workers=64)
    return every(
        near(
            e.last("loss", codec="dynamiq"),
            e.last("loss", codec="bf16"),
            abs(e.last("loss", codec=c) - e.last("loss", codec="bf16")),
        )
        for c in ("mxfp8", "mxfp6", "mxfp4", "thc", "omnireduce")
    )


@fig11("D21", "Section 6.1, Figure 11", "a plot, no number")
def _(e: Evidence) -> bool:
    """From eight to 64 workers the errors of THC and OmniReduce grow slower than those of MXFP8, MXFP6
    and MXFP4."""
    return every(
        exponent((n, e.vnmse(workers=n, codec=slow)) for n in (8, 16, 32, 64))
        < exponent((n, e.vnmse(workers=n, codec=c)) for n in (8, 16, 32, 64))
        for slow in ("thc", "omnireduce")
        for c in ("mxfp8", "mxfp6", "mxfp4")
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
    return every(
        falls(
            m.vnmse(gradients=g, codec="uniform", values="uniform"),
            m.vnmse(gradients=g, codec="uniform", values="nonuniform"),
            m.vnmse(gradients=g, codec="dynamiq", bits=4.5, group=32, scales="bf16"),
            m.vnmse(gradients=g, codec="dynamiq", bits=4.5, scales="hierarchical", rounding="independent"),
            m.vnmse(gradients=g, codec="dynamiq", bits=4.5, rounding="correlated"),
        )
        for m in e.each(model=("llama1b", "llama1b_mmlu"))
        for g in m.axis("gradients")
    )


@table6("D22a", "Section 6.2, Table 6", "14 times (chat), 22 times (MMLU; 20.5 by the table's cells)")
def _(e: Evidence) -> bool:
    """All techniques together lower uniform quantization's error to a tenth or less."""
    return every(
        m.vnmse(gradients=g, codec="uniform", values="uniform")
        >= 10 * m.vnmse(gradients=g, codec="dynamiq", bits=4.5, rounding="correlated")
        for m in e.each(model=("llama1b", "llama1b_mmlu"))
        for g in m.axis("gradients")
    )


@table6(
    "D22b",
    "Section 6.2, Table 6",
    "3.5 to 5.1 times; non-uniform values 1.8, hierarchical scales 1.4, correlated rounding 1.5 times",
)
def _(e: Evidence) -> bool:
    """Variable widths divide the error by more than any other technique does."""
    return every(
        m.vnmse(gradients=g, codec="uniform", values="nonuniform")
        / m.vnmse(gradients=g, codec="dynamiq", bits=4.5, group=32, scales="bf16")
        > max(
            m.vnmse(gradients=g, codec="uniform", values="uniform")
            / m.vnmse(gradients=g, codec="uniform", values="nonuniform"),
            m.vnmse(gradients=g, codec="dynamiq", bits=4.5, group=32, scales="bf16")
            / m.vnmse(gradients=g, codec="dynamiq", bits=4.5, scales="hierarchical", rounding="independent"),
            m.vnmse(gradients=g, codec="dynamiq", bits=4.5, scales="hierarchical", rounding="independent")
            / m.vnmse(gradients=g, codec="dynamiq", bits=4.5, rounding="correlated"),
        )
        for m in e.each(model=("llama1b", "llama1b_mmlu"))
        for g in m.axis("gradients")
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
        2.5
        <= e.paper("dynamiq/table3", method="MXFP8", model=m, dataset=d)
        / e.paper("dynamiq/table3", method="DynamiQ", model=m, dataset=d)
        <= 3
        for m, d in (
            ("BERT-large", "Wikitext-103"),
            ("LLaMA 1B", "UltraChat"),
            ("Gemma 1B", "UltraChat"),
            ("LLaMA 1B", "MMLU"),
        )
    )


@printed("DX3", "Section 5.1, Table 3", "orders of magnitude; THC on BERT-large has 4.1 times DynamiQ's")
def _(e: Evidence) -> bool:
    """In every workload of Table 3 MXFP4, THC and OmniReduce have at least ten times DynamiQ's error."""
    return every(
        e.paper("dynamiq/table3", method=c, model=m, dataset=d)
        >= 10 * e.paper("dynamiq/table3", method="DynamiQ", model=m, dataset=d)
        for c in ("MXFP4", "THC", "OR")
        for m, d in (
            ("BERT-large", "Wikitext-103"),
            ("LLaMA 1B", "UltraChat"),
            ("Gemma 1B", "UltraChat"),
            ("LLaMA 1B", "MMLU"),
        )
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
        abs(
            e.paper("dynamiq/table6", method="Uniform quantization", dataset=d)
            / e.paper("dynamiq/table6", method="+ Correlated rounding", dataset=d)
            - times
        )
        < 0.5
        for d, times in (("UltraChat", 14), ("MMLU", 22))
    )


@printed("DX8", "Section 5.3, Tables 3 and 5", "MXFP6 0.02008 against 0.01298, MXFP4 0.17058 against 0.09039")
def _(e: Evidence) -> bool:
    """On LLaMA 1B and MMLU every codec's printed error is lower on the butterfly than on the ring."""
    return every(
        e.paper("dynamiq/table5", method=c, metric="vNMSE")
        < e.paper("dynamiq/table3", method=c, model="LLaMA 1B", dataset="MMLU")
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
        e.paper("dynamiq/table4", method=row, dataset=d, metric="vNMSE")
        == e.paper("dynamiq/table3", method=c, model=m, dataset=d)
        for row, c in (("DynamiQ 5b", "DynamiQ"), ("MXFP8", "MXFP8"))
        for m, d in (("LLaMA 1B", "MMLU"), ("Gemma 1B", "UltraChat"))
    )


@printed("DX12", "Section 6.2, Table 6", "45 %, 30 %, 35 %")
def _(e: Evidence) -> bool:
    """The steps of the ablation are as large in the table as in the text, within one point."""
    return every(
        abs(
            1
            - e.paper("dynamiq/table6", method=after, dataset=d)
            / e.paper("dynamiq/table6", method=before, dataset=d)
            - less
        )
        < 0.01
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
