"""SDP4Bit's claims about weights, gradients and kernels that studies look at, and about a size between."""

from __future__ import annotations

from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.effects import Effects, above, at_least, below, every, near
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.claims.sdp4bit import NO_DIFFERENCES, keeps_loss, to_baseline
from gradwire.harness.report.evaluation import SeedFigure

sdp4bit_studies = Claims("SDP4Bit")

# SDP4Bit, Figures 4 and 6, Table 5

fig4_fig6 = sdp4bit_studies.on("sdp4bit_fig4_fig6")


@fig4_fig6("S16", "Section 3.2.2, Figure 6", "a plot, no number")
def _(e: Evidence) -> Effects:
    """The Hadamard transform lowers the kurtosis of all coordinates together, early and late in training,
    with every seed (blocks of 32 that differ in scale keep it)."""
    return every(
        below(g.figure("smoothing.after.kurtosis"), g.figure("smoothing.before.kurtosis"))
        for g in e.each(gradients=("training:step20", "training:step280"))
    )


@fig4_fig6("S16a", "Section 3.2.2, Figure 6", "a plot, no number")
def _(e: Evidence) -> Effects:
    """The Hadamard transform lowers the kurtosis within groups of 128, the median of them, early and late in
    training, with every seed."""
    return every(
        below(g.figure("smoothing.after.median_kurtosis"), g.figure("smoothing.before.median_kurtosis"))
        for g in e.each(gradients=("training:step20", "training:step280"))
    )


smoothing = sdp4bit_studies.on("sdp4bit_smoothing")


def has_outliers(e: Evidence) -> bool:
    """BERT's gradients have outliers: a kurtosis within groups above 4, where normal numbers have 3."""
    steps = e.where(model="bert_large").each(gradients=("training:step20", "training:step140"))
    return all(float(g.figure("smoothing.before.median_kurtosis")) > 4 for g in steps)


@smoothing(
    *("S16b", "Section 3.2.2, Figure 6", "a plot, no number"),
    active=has_outliers,
    foil=swap(model=("bert_large", "gpt_125m")),
)
def _(e: Evidence) -> Effects:
    """Where gradients have outliers, in a BERT, the Hadamard transform lowers the kurtosis within groups of
    128, the median of them, to less than half, early and late in training."""
    e = e.where(model="bert_large")
    return every(
        at_least(
            g.figure("smoothing.before.median_kurtosis") / g.figure("smoothing.after.median_kurtosis"),
            2.0,
            null=1.0,
        )
        for g in e.each(gradients=("training:step20", "training:step140"))
    )


@fig4_fig6("S17", "Section 3.1, Figure 4", "a plot, no number")
def _(e: Evidence) -> Effects:
    """Weight differences are smaller than weights, and int4 loses as large a share of both (within a
    factor of two), early and late in training."""
    return every(
        every(
            below(g.figure("differences.norm_ratio"), 1.0),
            below(g.figure("differences.error") / g.figure("weights.error"), 2.0),
            above(g.figure("differences.error") / g.figure("weights.error"), 0.5),
        )
        for g in e.each(gradients=("training:weights20", "training:weights280"))
    )


@fig4_fig6(
    *("S17a", "Section 3.1", "no number"),
    unfailed="a step changes weights by 0.2 %; no step is recorded that changes them so much that it fails",
)
def _(e: Evidence) -> Effects:
    """Relative to the weights, int4 loses less of their differences than of themselves, with every seed."""
    return every(
        below(g.figure("differences.over_weights"), g.figure("weights.error"))
        for g in e.each(gradients=("training:weights20", "training:weights280"))
    )


table5 = sdp4bit_studies.on("sdp4bit_table5")


def fused_share(e: Evidence, operation: str, place: str) -> SeedFigure:
    """The share of int4's throughput that is left with the fused transform; `place`: values, device,
    threads."""
    return e.values_gb_per_s(case=f"linear.{operation}_hadamard.4 float32 {place}") / e.values_gb_per_s(
        case=f"linear.{operation}.4 float32 {place}"
    )


@table5("S15", "Section 5.4, Table 5", "0.99 to 1.00", size="gpu")
def _(e: Evidence) -> Effects:
    """On a GPU int4 (de)quantization with the fused Hadamard transform has at least 0.98 of its
    throughput without, at 64, 512, 1024 and 2048 MB."""
    return every(
        at_least(fused_share(e, operation, f"{size} cuda 1"), 0.98, null=0.0)
        for size in (16777216, 134217728, 268435456, 536870912)
        for operation in ("quantize", "dequantize")
    )


@table5("S15a", "Section 5.4, Table 5", "nothing, on a GPU")
def _(e: Evidence) -> Effects:
    """On one thread of a CPU, from memory (64 MB), the fused transform costs at most a tenth of the
    throughput of int4."""
    return every(
        at_least(fused_share(e, operation, "16777216 cpu 1"), 0.9, null=0.0)
        for operation in ("quantize", "dequantize")
    )


# SDP4Bit, Table 1 at 2.5 million parameters: at 0.14 million qW's loss is near the seeds' spread

size = sdp4bit_studies.on("sdp4bit_size")


@size("S3d", "Section 5.2, Table 1", "+12.17 %, +8.95 %, +6.14 %", foil=NO_DIFFERENCES)
def _(e: Evidence) -> Effects:
    """At 2.5 million parameters weights quantized as they are (qW) add 12.17 % to the validation loss, as in
    the smallest of three sizes."""
    return near(to_baseline(e, "qw"), 1.1217, null=1.0)


@size("S3e", "Section 5.2, Table 1", "above the baseline in three sizes", foil=NO_DIFFERENCES)
def _(e: Evidence) -> Effects:
    """At 2.5 million parameters weights quantized as they are (qW) add 1 % or more to the validation loss."""
    return at_least(to_baseline(e, "qw"), 1.01, null=1.0)


@size("S4d", "Section 5.2, Table 1", "-0.05 %, +0.01 %, +0.06 %")
def _(e: Evidence) -> Effects:
    """At 2.5 million parameters quantized weight differences (qWD) add to the validation loss a fifth at most
    of what quantized weights (qW) add."""
    return keeps_loss(e, "qwd")


@size("S2b", "Section 5.2, Table 1", "+0.09 %, +0.12 %, +0.24 %")
def _(e: Evidence) -> Effects:
    """At 2.5 million parameters SDP4Bit adds to the validation loss a fifth at most of what quantized weights
    (qW) add."""
    return keeps_loss(e, "sdp4bit")


@size("S4e", "Section 3.1", "smaller errors, no number", foil=swap(experiment=("qwd", "qw")))
def _(e: Evidence) -> Effects:
    """At 2.5 million parameters the model is nearer to the main weights with quantized differences than with
    quantized weights, by a factor of ten or more."""
    e = e.where(model="gpt_125m")
    return at_least(e.weight_error(experiment="qw") / e.weight_error(experiment="qwd"), 10.0, null=1.0)
