"""DynamiQ's text against its own tables."""

from __future__ import annotations

import math

from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.effects import close, every
from gradwire.harness.report.claims.evidence import Evidence

WORKLOADS = (
    ("BERT-large", "Wikitext-103"),
    ("LLaMA 1B", "UltraChat"),
    ("Gemma 1B", "UltraChat"),
    ("LLaMA 1B", "MMLU"),
)
"""The models and data of Table 3."""

dynamiq_printed = Claims("DynamiQ")


def printed_error(e: Evidence, method: str, model: str, dataset: str) -> float:
    """The error that Table 3 prints."""
    return e.paper("dynamiq/table3", method=method, model=model, dataset=dataset)


def printed_ablated(e: Evidence, method: str, dataset: str) -> float:
    """The error that Table 6 prints."""
    return e.paper("dynamiq/table6", method=method, dataset=dataset)


printed = dynamiq_printed.of_print()


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
        close(
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
        close(1 - printed_ablated(e, after, d) / printed_ablated(e, before, d), less, 0.01)
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
