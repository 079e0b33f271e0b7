"""SDP4Bit's claims about throughput, and its figures against one another."""

from __future__ import annotations

from functools import reduce
from operator import add

from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.evidence import Evidence, every, near, rises, within
from gradwire.harness.report.evaluation import SeedFigure

A100, H800 = "4xA100, 16 nodes, Slingshot 10", "8xH800, 16 nodes, InfiniBand"
"""The clusters of Table 2, as it names them."""

sdp4bit_throughput = Claims("SDP4Bit")


def printed_tflops(e: Evidence, model: str, method: str, cluster: str) -> float:
    """The TFLOP/s that Table 2 prints."""
    return e.paper("sdp4bit/table2", model=model, method=method, setting=f"{cluster};accumulation 1")


def printed_speedup(e: Evidence, model: str, cluster: str) -> float:
    """The speed-up that Table 2 prints."""
    return e.paper("sdp4bit/table2", model=model, method="SDP4Bit/Baseline", setting=cluster)


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


def mean_speedup(e: Evidence, model: str, *workers: int) -> SeedFigure:
    """The mean of the predicted speed-ups over numbers of workers."""
    return reduce(add, [e.over_uncompressed(model=model, workers=n) for n in workers]) / len(workers)


# SDP4Bit held against itself

printed = sdp4bit_throughput.on()


@printed("SX1", "Abstract, Table 2", "4.08 ×")
def _(e: Evidence) -> bool:
    """The largest speed-up is 4.08, that of 18B on the second cluster, and the quotient of its cells."""
    return every(
        near(quotient(e, "GPT-18B", H800), 4.08, 0.01),
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
        near(quotient(e, m, cluster), printed_speedup(e, m, cluster), 0.01)
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
        rises(printed_loss(e, m, method) for method in ("Baseline", "TLq-HS", "TLq"))
        for m in ("GPT-125M", "GPT-350M", "GPT-1.3B")
    )


@printed("SX6", "Section 5.4, Table 4", "64.6 ms, 45.8 ms")
def _(e: Evidence) -> bool:
    """The fused transform takes 29 % off the time of gradient communication."""
    return near(1 - printed_ms(e, "SDP4Bit") / printed_ms(e, "SDP4Bit (HS w/o fused)"), 0.29, 0.005)


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


# SDP4Bit, Tables 2 and 4, Figures 7 and 8: throughput, predicted by task=predict
# "Within 15 %" is one tolerance for all predicted figures, and it is ours: the paper has none for
# predictions. A measured all-reduce has to come as near to what the clock says. Each figure's own
# error is in the sweeps' tables.

table2 = sdp4bit_throughput.on("sdp4bit_table2")


@table2("S1", "Abstract, Section 5.3", "4.08 x", size="paper")
def _(e: Evidence) -> bool:
    """With eight ports of 400 Gbit/s a node, as printed, GPT-18B on 128 H800 is predicted to train 4.08
    times as fast, within 15 %."""
    return within(e.over_uncompressed(model="gpt_18b", workers=128, nics=8, experiment="sdp4bit"), 4.08, 0.15)


@table2("S1a", "Abstract, Section 5.3", "4.08 x", size="paper")
def _(e: Evidence) -> bool:
    """With one port of 400 Gbit/s a node, GPT-18B on 128 H800 is predicted to train 4.08 times as fast,
    within 15 %."""
    return within(e.over_uncompressed(model="gpt_18b", workers=128, nics=1, experiment="sdp4bit"), 4.08, 0.15)


table2_baseline = sdp4bit_throughput.on("sdp4bit_table2_baseline")


@table2_baseline("S1b", "Table 2", "57.6, 58.4 TFLOP/s", size="paper")
def _(e: Evidence) -> bool:
    """Calibrated on the baseline's TFLOP/s, the predictions of SDP4Bit's on 64 A100 are within 15 % for
    1.3B and 2.7B."""
    return every(
        within(e.tflops(model=m, workers=64), printed_tflops(e, name, "SDP4Bit", A100), 0.15)
        for m, name in (("gpt_1_3b", "GPT-1.3B"), ("gpt_2_7b", "GPT-2.7B"))
    )


@table2_baseline("S1c", "Table 2", "77.9, 53.5 TFLOP/s", size="paper")
def _(e: Evidence) -> bool:
    """Calibrated on the baseline's TFLOP/s, with one port of 400 Gbit/s a node, the predictions of
    SDP4Bit's on 128 H800 are within 15 % for 6.7B and 13B."""
    return every(
        within(e.tflops(model=m, workers=128, nics=1), printed_tflops(e, name, "SDP4Bit", H800), 0.15)
        for m, name in (("gpt_6_7b", "GPT-6.7B"), ("gpt_13b", "GPT-13B"))
    )


@table2("S9", "Section 5.3, Table 2", "2.39, 2.43, 3.44 > 1.53, 1.63, 2.97", size="paper")
def _(e: Evidence) -> bool:
    """From 1.3B to 6.7B parameters the speed-up is larger on the slower network."""
    return every(
        m.over_uncompressed(workers=64, experiment="sdp4bit")
        > m.over_uncompressed(workers=128, nics=8, experiment="sdp4bit")
        for m in e.each(model=("gpt_1_3b", "gpt_2_7b", "gpt_6_7b"))
    )


@table2(
    "S10",
    "Section 5.3, Table 2",
    "2.39 < 2.43 and 2.68 < 2.92 (A100); 1.53 < 1.63 and 3.85 < 4.08 (H800)",
    size="paper",
)
def _(e: Evidence) -> bool:
    """The speed-up grows with the model where tensor and pipeline parallelism are the same."""
    e = e.where(experiment="sdp4bit")
    return every(
        e.over_uncompressed(model=large, workers=n, nics=p)
        > e.over_uncompressed(model=less, workers=n, nics=p)
        for less, large in (("gpt_1_3b", "gpt_2_7b"), ("gpt_13b", "gpt_18b"))
        for n, p in ((64, 1), (128, 8))
    )


fig7 = sdp4bit_throughput.on("sdp4bit_fig7")


@fig7("S11", "Section 5.3, Figure 7", "3.40, 2.49 x", size="paper")
def _(e: Evidence) -> bool:
    """On A100 the predicted speed-up, the mean over 16, 32 and 64 GPUs, is 3.40 for 6.7B and 2.49 for
    13B, within 15 %. (The paper does not say over which numbers it averages.)"""
    e = e.where(compute_tflops=114, experiment="sdp4bit")
    return every(
        within(mean_speedup(e, "gpt_6_7b", 16, 32, 64), 3.4, 0.15),
        within(mean_speedup(e, "gpt_13b", 16, 32, 64), 2.49, 0.15),
    )


@fig7("S11a", "Section 5.3, Figure 7", "3.08, 3.73 x", size="paper")
def _(e: Evidence) -> bool:
    """On H800, with eight ports of 400 Gbit/s a node as printed, the predicted speed-up, the mean over
    32, 64 and 128 GPUs, is 3.08 for 6.7B and 3.73 for 13B, within 15 %. (The paper does not say over
    which numbers it averages.)"""
    e = e.where(compute_tflops=127, nics=8, experiment="sdp4bit")
    return every(
        within(mean_speedup(e, "gpt_6_7b", 32, 64, 128), 3.08, 0.15),
        within(mean_speedup(e, "gpt_13b", 32, 64, 128), 3.73, 0.15),
    )


@fig7("S11b", "Section 5.3, Figure 7", "3.08, 3.73 x", size="paper")
def _(e: Evidence) -> bool:
    """On H800, with one port of 400 Gbit/s a node, the predicted speed-up, the mean over 32, 64 and 128
    GPUs, is 3.08 for 6.7B and 3.73 for 13B, within 15 %. (The paper does not say over which numbers
    it averages.)"""
    e = e.where(compute_tflops=127, nics=1, experiment="sdp4bit")
    return every(
        within(mean_speedup(e, "gpt_6_7b", 32, 64, 128), 3.08, 0.15),
        within(mean_speedup(e, "gpt_13b", 32, 64, 128), 3.73, 0.15),
    )


fig8 = sdp4bit_throughput.on("sdp4bit_fig8")


@fig8("S12", "Section 5.4, Figure 8", "1.1-1.2, 1.4-1.8, 1.6-2.4 x", size="paper")
def _(e: Evidence) -> bool:
    """At 2.7B qWD brings 1.1 to 1.2 x, TLq-HS 1.4 to 1.8 x, both 1.6 to 2.4 x, on both clusters (within
    15 %)."""
    return every(
        0.85 * least <= n.over_uncompressed(experiment=name) <= 1.15 * most
        for n in e.each(workers=(64, 128))
        for name, least, most in (("qwd", 1.1, 1.2), ("tlq_hs", 1.4, 1.8), ("sdp4bit", 1.6, 2.4))
    )


@fig8("S12a", "Section 5.4, Figure 8", "1.1-1.2 < 1.4-1.8 < 1.6-2.4 x", size="paper")
def _(e: Evidence) -> bool:
    """TLq-HS brings more than qWD, and both more than either, on both clusters."""
    return every(
        rises(
            name.over_uncompressed(workers=n)
            for name in e.each(experiment=("sharded_baseline", "qwd", "tlq_hs", "sdp4bit"))
        )
        for n in (64, 128)
    )


table4 = sdp4bit_throughput.on("sdp4bit_table4")


@table4("S13", "Section 5.4, Table 4", "45.9 and 45.0 ms", size="paper")
def _(e: Evidence) -> bool:
    """TLq-HS's gradients are predicted to take as long as ULq's, within 15 % (codec work left out)."""
    e = e.where(overlap_enabled=False)
    return within(e.gradient_comm_s(experiment="tlq_hs"), e.gradient_comm_s(experiment="ulq"), 0.15)


@table4("S13a", "Table 4", "379.3 and 45.9 ms", size="paper")
def _(e: Evidence) -> bool:
    """The baseline's gradients take 379 ms on 32 A100, TLq-HS's 45.9 ms (within 15 %)."""
    e = e.where(overlap_enabled=False)
    return every(
        within(e.gradient_comm_s(experiment="sharded_baseline"), 0.3793, 0.15),
        within(e.gradient_comm_s(experiment="tlq_hs"), 0.0459, 0.15),
    )


@table4("S13b", "Table 4", "43.3 TFLOP/s", size="paper")
def _(e: Evidence) -> bool:
    """Calibrated on the baseline's TFLOP/s, with gradients sent after backward, the predictions of
    TLq-HS and ULq are within 15 %."""
    return every(
        within(name.tflops(overlap_enabled=False), 43.3, 0.15)
        for name in e.each(experiment=("tlq_hs", "ulq"))
    )


@table4("S13c", "Table 4", "43.3 TFLOP/s", size="paper")
def _(e: Evidence) -> bool:
    """Calibrated on the baseline's TFLOP/s, with gradients sent during backward, the prediction of
    TLq-HS is within 15 %."""
    return within(e.tflops(experiment="tlq_hs", overlap_enabled=True), 43.3, 0.15)


@table4("S13d", "Table 4", "58.5 TFLOP/s", size="paper")
def _(e: Evidence) -> bool:
    """Calibrated on the baseline's TFLOP/s, with gradients sent after backward, the prediction of
    SDP4Bit is within 15 % (codec work left out)."""
    return within(e.tflops(experiment="sdp4bit", hadamard="fused", overlap_enabled=False), 58.5, 0.15)


sdp4bit_throughput.without_predicate(
    "S14",
    "Section 5.4, Table 4",
    "Fusing the transform with quantization shortens gradient communication by 29 %.",
    "45.8 against 64.6 ms",
    (
        "codec work on a GPU has not been measured, without which sdp4bit_table4 predicts both alike; "
        "sdp4bit_table5 compares the kernels on a CPU"
    ),
)


@table4("S23", "Section 3.2.1, Section 5.4", "not printed", size="paper")
def _(e: Evidence) -> bool:
    """TLq-HS's gradients are predicted to travel at most 1.15 times as long as their 4 bits alone, with
    a scale for each 128, would take between 8 nodes at 100 Gbit/s."""
    e = e.where(experiment="tlq_hs", overlap_enabled=False)
    return (
        e.gradient_comm_s()
        <= 1.15 * e.figure("bytes_sent", case="weights") / (31 * 2) * 4.25 / 8 * 7 / 8 / 12500000000.0
    )
