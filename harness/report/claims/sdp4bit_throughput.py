"""SDP4Bit's claims about throughput, predicted by task=predict."""

from __future__ import annotations

from functools import reduce
from operator import add

from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.effects import Effects, above, close, every, near, rises
from gradwire.harness.report.claims.evidence import Evidence, swap
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


def mean_speedup(e: Evidence, model: str, *workers: int) -> SeedFigure:
    """The mean of the predicted speed-ups over numbers of workers."""
    return reduce(add, [e.over_uncompressed(model=model, workers=n) for n in workers]) / len(workers)


# SDP4Bit, Tables 2 and 4, Figures 7 and 8: throughput, predicted by task=predict
table2 = sdp4bit_throughput.on("sdp4bit_table2")


EIGHT_PORTS, ONE_PORT = swap(nics=(1, 8)), swap(nics=(8, 1))
"""Foils: the other number of network ports of a node of H800."""


@table2("S1", "Abstract, Section 5.3", "4.08 x", "paper", foil=ONE_PORT)
def _(e: Evidence) -> Effects:
    """With eight ports of 400 Gbit/s a node, as printed, GPT-18B on 128 H800 is predicted to train 4.08
    times as fast."""
    return near(
        e.over_uncompressed(model="gpt_18b", workers=128, nics=8, experiment="sdp4bit"), 4.08, null=1.0
    )


@table2("S1a", "Abstract, Section 5.3", "4.08 x", "paper", foil=EIGHT_PORTS)
def _(e: Evidence) -> Effects:
    """With one port of 400 Gbit/s a node, GPT-18B on 128 H800 is predicted to train 4.08 times as fast."""
    return near(
        e.over_uncompressed(model="gpt_18b", workers=128, nics=1, experiment="sdp4bit"), 4.08, null=1.0
    )


@table2("S1d", "Table 2", "106.0 and 116.9 TFLOP/s; baseline 69.1 and 71.9", "paper", foil=EIGHT_PORTS)
def _(e: Evidence) -> Effects:
    """With one port of 400 Gbit/s a node, 1.3B and 2.7B on 128 H800 are predicted to reach 106.0 and 116.9
    TFLOP/s."""
    return every(
        near(
            e.tflops(model=m, workers=128, nics=1, experiment="sdp4bit"),
            printed_tflops(e, name, "SDP4Bit", H800),
            null=printed_tflops(e, name, "Baseline", H800),
        )
        for m, name in (("gpt_1_3b", "GPT-1.3B"), ("gpt_2_7b", "GPT-2.7B"))
    )


table2_baseline = sdp4bit_throughput.on("sdp4bit_table2_baseline")


@table2_baseline("S1b", "Table 2", "57.6, 58.4 TFLOP/s", "paper")
def _(e: Evidence) -> Effects:
    """Calibrated on the baseline's TFLOP/s, SDP4Bit is predicted to reach 57.6 (1.3B) and 58.4 (2.7B) on 64
    A100."""
    return every(
        near(
            e.tflops(model=m, workers=64),
            printed_tflops(e, name, "SDP4Bit", A100),
            null=printed_tflops(e, name, "Baseline", A100),
        )
        for m, name in (("gpt_1_3b", "GPT-1.3B"), ("gpt_2_7b", "GPT-2.7B"))
    )


@table2_baseline("S1c", "Table 2", "77.9, 53.5 TFLOP/s", "paper")
def _(e: Evidence) -> Effects:
    """Calibrated on the baseline's TFLOP/s, with one port of 400 Gbit/s a node, SDP4Bit is predicted to reach
    77.9 (6.7B) and 53.5 (13B) on 128 H800."""
    return every(
        near(
            e.tflops(model=m, workers=128, nics=1),
            printed_tflops(e, name, "SDP4Bit", H800),
            null=printed_tflops(e, name, "Baseline", H800),
        )
        for m, name in (("gpt_6_7b", "GPT-6.7B"), ("gpt_13b", "GPT-13B"))
    )


@table2(
    *("S9", "Section 5.3, Table 2", "2.39, 2.43, 3.44 > 1.53, 1.63, 2.97", "paper"),
    unfailed="with one port or eight, whatever sends less gains more on the slower network",
)
def _(e: Evidence) -> Effects:
    """From 1.3B to 6.7B parameters the speed-up is larger on the slower network (eight ports a node of H800,
    as printed)."""
    return every(
        above(
            m.over_uncompressed(workers=64, experiment="sdp4bit"),
            m.over_uncompressed(workers=128, nics=8, experiment="sdp4bit"),
        )
        for m in e.each(model=("gpt_1_3b", "gpt_2_7b", "gpt_6_7b"))
    )


@table2(
    "S10",
    "Section 5.3, Table 2",
    "2.39 < 2.43 and 2.68 < 2.92 (A100); 1.53 < 1.63 and 3.85 < 4.08 (H800)",
    "paper",
)
def _(e: Evidence) -> Effects:
    """Where tensor and pipeline parallelism are the same, the speed-up grows with the model by as much as
    printed, by 1.7 to 9 % (eight ports a node of H800, as printed)."""
    e = e.where(experiment="sdp4bit")
    return every(
        near(
            e.over_uncompressed(model=large, workers=n, nics=p)
            / e.over_uncompressed(model=less, workers=n, nics=p),
            printed_speedup(e, larger, cluster) / printed_speedup(e, smaller, cluster),
            null=1.0,
        )
        for less, large, smaller, larger in (
            ("gpt_1_3b", "gpt_2_7b", "GPT-1.3B", "GPT-2.7B"),
            ("gpt_13b", "gpt_18b", "GPT-13B", "GPT-18B"),
        )
        for n, p, cluster in ((64, 1, A100), (128, 8, H800))
    )


fig7 = sdp4bit_throughput.on("sdp4bit_fig7")


@fig7("S11", "Section 5.3, Figure 7", "3.40, 2.49 x", "paper")
def _(e: Evidence) -> Effects:
    """On A100 the predicted speed-up, the mean over 16, 32 and 64 GPUs, is 3.40 for 6.7B and 2.49 for
    13B. (The paper does not say over which numbers it averages.)"""
    e = e.where(compute_tflops=114, experiment="sdp4bit")
    return every(
        near(mean_speedup(e, "gpt_6_7b", 16, 32, 64), 3.4, null=1.0),
        near(mean_speedup(e, "gpt_13b", 16, 32, 64), 2.49, null=1.0),
    )


@fig7("S11a", "Section 5.3, Figure 7", "3.08, 3.73 x", "paper", foil=ONE_PORT)
def _(e: Evidence) -> Effects:
    """On H800, with eight ports of 400 Gbit/s a node as printed, the predicted speed-up, the mean over
    32, 64 and 128 GPUs, is 3.08 for 6.7B and 3.73 for 13B. (The paper does not say over
    which numbers it averages.)"""
    e = e.where(compute_tflops=127, nics=8, experiment="sdp4bit")
    return every(
        near(mean_speedup(e, "gpt_6_7b", 32, 64, 128), 3.08, null=1.0),
        near(mean_speedup(e, "gpt_13b", 32, 64, 128), 3.73, null=1.0),
    )


@fig7("S11b", "Section 5.3, Figure 7", "3.08, 3.73 x", "paper", foil=EIGHT_PORTS)
def _(e: Evidence) -> Effects:
    """On H800, with one port of 400 Gbit/s a node, the predicted speed-up, the mean over 32, 64 and 128
    GPUs, is 3.08 for 6.7B and 3.73 for 13B. (The paper does not say over which numbers
    it averages.)"""
    e = e.where(compute_tflops=127, nics=1, experiment="sdp4bit")
    return every(
        near(mean_speedup(e, "gpt_6_7b", 32, 64, 128), 3.08, null=1.0),
        near(mean_speedup(e, "gpt_13b", 32, 64, 128), 3.73, null=1.0),
    )


fig8 = sdp4bit_throughput.on("sdp4bit_fig8")


@fig8("S12", "Section 5.4, Figure 8", "1.1-1.2, 1.4-1.8, 1.6-2.4 x", "paper")
def _(e: Evidence) -> Effects:
    """At 2.7B qWD brings 1.15 x, TLq-HS 1.6 x, both 2 x, the middles of what is printed, on both clusters."""
    return every(
        near(n.over_uncompressed(experiment=name), middle, null=1.0)
        for n in e.each(workers=(64, 128))
        for name, middle in (("qwd", 1.15), ("tlq_hs", 1.6), ("sdp4bit", 2.0))
    )


@sdp4bit_throughput.by_construction("sdp4bit_fig8")(
    "S12a", "Section 5.4, Figure 8", "1.1-1.2 < 1.4-1.8 < 1.6-2.4 x", "paper"
)
def _(e: Evidence) -> Effects:
    """TLq-HS brings more than qWD, and both more than either, on both clusters."""
    return every(
        rises(
            name.over_uncompressed(workers=n)
            for name in e.each(experiment=("sharded_baseline", "qwd", "tlq_hs", "sdp4bit"))
        )
        for n in (64, 128)
    )


table4 = sdp4bit_throughput.on("sdp4bit_table4")
table4_model = sdp4bit_throughput.by_construction("sdp4bit_table4")
BASELINE_TFLOPS = 24.4
"""The baseline's TFLOP/s in Table 4."""


@table4_model("S13", "Section 5.4, Table 4", "45.9 and 45.0 ms", "paper")
def _(e: Evidence) -> bool:
    """TLq-HS's gradients are predicted to take as long as ULq's, within 15 % (codec work left out)."""
    e = e.where(overlap_enabled=False)
    return close(float(e.gradient_comm_s(experiment="tlq_hs") / e.gradient_comm_s(experiment="ulq")), 1, 0.15)


@table4("S13a", "Table 4", "379.3 ms", "paper", foil=swap(experiment=("sharded_baseline", "tlq_hs")))
def _(e: Evidence) -> Effects:
    """The baseline's gradients are predicted to take 379 ms on 32 A100."""
    e = e.where(overlap_enabled=False)
    return near(e.gradient_comm_s(experiment="sharded_baseline"), 0.3793, null=0.0)


@table4(
    "S13e",
    "Table 4",
    "45.9 ms; baseline 379.3 ms",
    "paper",
    tolerance=0.02,
    foil=swap(experiment=("tlq_hs", "sharded_baseline")),
)
def _(e: Evidence) -> Effects:
    """TLq-HS's gradients are predicted to take 45.9 ms on 32 A100 (within 7 ms, codec work left out)."""
    e = e.where(overlap_enabled=False)
    return near(e.gradient_comm_s(experiment="tlq_hs"), 0.0459, null=0.3793)


@table4(
    "S13b",
    "Table 4",
    "43.3 TFLOP/s; baseline 24.4",
    "paper",
    foil=swap({"hadamard": "fused"}, experiment=("tlq_hs", "sdp4bit")),
)
def _(e: Evidence) -> Effects:
    """Calibrated on the baseline's TFLOP/s, with gradients sent after backward, TLq-HS and ULq are predicted
    to reach 43.3."""
    return every(
        near(name.tflops(overlap_enabled=False), 43.3, null=BASELINE_TFLOPS)
        for name in e.each(experiment=("tlq_hs", "ulq"))
    )


@table4("S13c", "Table 4", "43.3 TFLOP/s; baseline 24.4", "paper")
def _(e: Evidence) -> Effects:
    """Calibrated on the baseline's TFLOP/s, with gradients sent during backward, TLq-HS is predicted to reach
    43.3."""
    return near(e.tflops(experiment="tlq_hs", overlap_enabled=True), 43.3, null=BASELINE_TFLOPS)


@table4("S13d", "Table 4", "58.5 TFLOP/s; baseline 24.4", "paper")
def _(e: Evidence) -> Effects:
    """Calibrated on the baseline's TFLOP/s, with gradients sent after backward, SDP4Bit is predicted to reach
    58.5 (codec work left out)."""
    found = e.tflops(experiment="sdp4bit", hadamard="fused", overlap_enabled=False)
    return near(found, 58.5, null=BASELINE_TFLOPS)


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


@table4_model("S23", "Section 3.2.1, Section 5.4", "not printed", "paper")
def _(e: Evidence) -> bool:
    """TLq-HS's gradients are predicted to travel at most 1.15 times as long as their 4 bits alone, with
    a scale for each 128, would take between 8 nodes at 100 Gbit/s."""
    e = e.where(experiment="tlq_hs", overlap_enabled=False)
    return bool(
        e.gradient_comm_s()
        <= 1.15 * e.figure("bytes_sent", case="weights") / (31 * 2) * 4.25 / 8 * 7 / 8 / 12500000000.0
    )
