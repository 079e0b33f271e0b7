"""SDP4Bit's figures held against one another."""

from __future__ import annotations

from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.effects import close, every
from gradwire.harness.report.claims.evidence import Evidence
from gradwire.harness.report.claims.sdp4bit_throughput import A100, H800, printed_speedup, printed_tflops

sdp4bit_printed = Claims("SDP4Bit")


def quotient(e: Evidence, model: str, cluster: str) -> float:
    """The speed-up by the cells of Table 2."""
    return printed_tflops(e, model, "SDP4Bit", cluster) / printed_tflops(e, model, "Baseline", cluster)


def printed_loss(e: Evidence, model: str, method: str) -> float:
    """The validation loss that Table 1 prints."""
    return e.paper("sdp4bit/table1", model=model, method=method)


def most_added(e: Evidence, method: str) -> float:
    """By how much of the baseline's loss a method's is above it, at most over the sizes of Table 1."""
    return max(
        printed_loss(e, m, method) / printed_loss(e, m, "Baseline") - 1
        for m in ("GPT-125M", "GPT-350M", "GPT-1.3B")
    )


def printed_ms(e: Evidence, method: str) -> float:
    """The time of gradient communication that Table 4 prints."""
    return e.paper("sdp4bit/table4", method=method, metric="grad_comm_time")


printed = sdp4bit_printed.of_print()


@printed("SX1", "Abstract, Table 2", "4.08 ×")
def _(e: Evidence) -> bool:
    """The largest speed-up is 4.08, that of 18B on the second cluster, and the quotient of its cells."""
    return every(
        close(quotient(e, "GPT-18B", H800), 4.08, 0.01),
        every(
            printed_speedup(e, m, cluster) <= 4.08
            for m in ("GPT-1.3B", "GPT-2.7B", "GPT-6.7B", "GPT-13B", "GPT-18B")
            for cluster in (A100, H800)
        ),
    )


@printed("SX2", "Table 2", "ten quotients")
def _(e: Evidence) -> bool:
    """Every printed speed-up is the quotient of its two cells, as far as their digits tell (within
    0.01)."""
    return every(
        close(quotient(e, m, cluster), printed_speedup(e, m, cluster), 0.01)
        for m in ("GPT-1.3B", "GPT-2.7B", "GPT-6.7B", "GPT-13B", "GPT-18B")
        for cluster in (A100, H800)
    )


@printed("SX3", "Section 5.2, Table 1", "0.086 %, 0.117 %, 0.241 %")
def _(e: Evidence) -> bool:
    """By Table 1's cells SDP4Bit's loss is above the baseline's by 0.24 % at most."""
    return most_added(e, "SDP4Bit") < 0.00245


@printed("SX4", "Section 5.2, Table 1", "12.17 %, 8.95 %, 6.14 %")
def _(e: Evidence) -> bool:
    """By Table 1's cells qW's loss is above the baseline's by 12 % at most, rounded."""
    return 0.115 <= most_added(e, "qW") < 0.125


@printed("SX5", "Section 5.2, Table 1", "2.29392 < 2.29528 < 2.30479 and so on")
def _(e: Evidence) -> bool:
    """In all three sizes TLq-HS ends between the baseline and TLq."""
    return every(
        printed_loss(e, m, "Baseline") < printed_loss(e, m, "TLq-HS") < printed_loss(e, m, "TLq")
        for m in ("GPT-125M", "GPT-350M", "GPT-1.3B")
    )


@printed("SX6", "Section 5.4, Table 4", "64.6 ms, 45.8 ms")
def _(e: Evidence) -> bool:
    """The fused transform takes 29 % off the time of gradient communication."""
    return close(1 - printed_ms(e, "SDP4Bit") / printed_ms(e, "SDP4Bit (HS w/o fused)"), 0.29, 0.005)


@printed("SX7", "Section 5.3, Table 2", "2.39 > 1.53, 2.43 > 1.63, 3.44 > 2.97")
def _(e: Evidence) -> bool:
    """Up to 6.7B the speed-up is larger on the slower network."""
    return every(
        printed_speedup(e, m, A100) > printed_speedup(e, m, H800)
        for m in ("GPT-1.3B", "GPT-2.7B", "GPT-6.7B")
    )


@printed("SX8", "Section 5.3, Table 2", "2.39 < 2.43, 1.53 < 1.63, 2.68 < 2.92, 3.85 < 4.08")
def _(e: Evidence) -> bool:
    """With the same model parallelism (1.3B and 2.7B, 13B and 18B) SDP4Bit's throughput and its speed-up
    grow with the model, on both networks."""
    return every(
        e.paper("sdp4bit/table2", model=a, method=method, setting=s)
        < e.paper("sdp4bit/table2", model=b, method=method, setting=s)
        for a, b in (("GPT-1.3B", "GPT-2.7B"), ("GPT-13B", "GPT-18B"))
        for method, after in (("SDP4Bit/Baseline", ""), ("SDP4Bit", ";accumulation 1"))
        for s in (A100 + after, H800 + after)
    )


@printed("SX9", "Section 5.4, Table 5", "nearly zero-overhead")
def _(e: Evidence) -> bool:
    """At every size the fused transform keeps between 0.98 and 1.005 of the throughput."""
    return every(
        0.98
        <= e.paper("sdp4bit/table5", method=f"{work} w/ Hadamard", setting=f"one A100;size_MB={size}")
        / e.paper("sdp4bit/table5", method=f"{work} w/o Hadamard", setting=f"one A100;size_MB={size}")
        <= 1.005
        for work in ("quantize", "dequantize")
        for size in (8, 16, 64, 512, 1024, 2048)
    )


@printed("SX10", "Tables 1, 3", "2.29392, 2.29528, 2.29274, 2.57312")
def _(e: Evidence) -> bool:
    """The cells that Table 3 has in common with Table 1 are the same."""
    return every(
        e.paper("sdp4bit/table3", method="Baseline") == printed_loss(e, "GPT-125M", "Baseline"),
        every(
            e.paper("sdp4bit/table3", method=m, setting=s) == printed_loss(e, "GPT-125M", m)
            for m, s in (("TLq-HS", "group_size=128"), ("qWD", "group_size=2048"), ("qW", "group_size=2048"))
        ),
    )


@printed("SX11", "Section 5.1", "over 40 billion")
def _(e: Evidence) -> bool:
    """80,000 steps of 256 sequences of 2048 tokens are more than 40 billion tokens."""
    return 80000 * 256 * 2048 > 40000000000


@printed("SX12", "Section 5.4, Table 4", "45.9 ms, 45.0 ms")
def _(e: Evidence) -> bool:
    """Gradients in two levels with the smoother take hardly longer than ULq's, within 3 %."""
    return printed_ms(e, "TLq-HS") / printed_ms(e, "ULq") <= 1.03
