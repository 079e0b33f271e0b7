"""SDP4Bit's claims about training."""

from __future__ import annotations

from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.effects import (
    Effects,
    above,
    at_least,
    at_most,
    below,
    every,
    falls,
    near,
    spared,
)
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.evaluation import SeedFigure

SIZES = ("gpt_125m", "gpt_350m", "gpt_1_3b")
sdp4bit = Claims("SDP4Bit")

NO_DIFFERENCES, SMOOTHED = swap(experiment=("qw", "qwd")), swap(experiment=("ulq", "tlq_hs"))
"""Foils of claims about quantized weights, and about gradients in two levels of 4 bits."""


def loss(e: Evidence, experiment: str, model: str = "gpt_125m") -> SeedFigure:
    """The validation loss of a strategy at the end of its run."""
    return e.last("loss", model=model, experiment=experiment)


def to_baseline(e: Evidence, experiment: str, model: str = "gpt_125m") -> SeedFigure:
    """That loss over the one of training without compression."""
    return loss(e, experiment, model) / loss(e, "sharded_baseline", model)


def keeps_loss(e: Evidence, experiment: str, model: str = "gpt_125m") -> Effects:
    """The loss is the baseline's, where quantized weights (qW) show what harm is."""
    return spared(*(loss(e, name, model) for name in (experiment, "sharded_baseline", "qw")))


def trained(e: Evidence, experiment: str) -> SeedFigure:
    """The training loss on one batch in every step."""
    return e.train_loss(model="gpt_125m", experiment=experiment)


# SDP4Bit, Table 1, Figures 1, 5, 9: eight strategies of sharded training
# At size=small seeds differ by more than any effect of gradients on validation loss: the paper's own
# margins need its own runs, and what a small run can tell is claimed beside them (S2a, S3a, S5a, …).

table1 = sdp4bit.on("sdp4bit_table1")


@table1("S2", "Section 5.2, Table 1", "+0.24 % at most", "paper")
def _(e: Evidence) -> Effects:
    """SDP4Bit adds to the validation loss a fifth at most of what quantized weights (qW) add, in each of
    three sizes."""
    return every(keeps_loss(e, "sdp4bit", m) for m in SIZES)


@table1("S2a", "Section 5.2, Table 1", "+0.09 %, +0.12 %, +0.24 %")
def _(e: Evidence) -> Effects:
    """SDP4Bit adds to the validation loss a fifth at most of what quantized weights (qW) add."""
    return keeps_loss(e, "sdp4bit")


@table1("S3", "Section 5.2, Table 1", "+12.17 %, +8.95 %, +6.14 %", "paper", foil=NO_DIFFERENCES)
def _(e: Evidence) -> Effects:
    """Weights quantized as they are (qW) add 12.17, 8.95 and 6.14 % to the validation loss of three sizes."""
    return every(
        near(to_baseline(e, "qw", m), 1 + more, null=1.0)
        for m, more in zip(SIZES, (0.1217, 0.0895, 0.0614), strict=True)
    )


@table1("S3a", "Section 5.2, Table 1", "+12.17 %, +8.95 %, +6.14 %", foil=NO_DIFFERENCES)
def _(e: Evidence) -> Effects:
    """Weights quantized as they are (qW, groups of 2048) add 12.17 % to the validation loss, as in the
    smallest of three sizes."""
    return near(to_baseline(e, "qw"), 1.1217, null=1.0)


@table1("S3c", "Section 5.2, Table 1", "above the baseline in three sizes", foil=NO_DIFFERENCES)
def _(e: Evidence) -> Effects:
    """Weights quantized as they are (qW, groups of 2048) end above the baseline's validation loss with every
    seed: the direction alone, not how much."""
    return above(loss(e, "qw"), loss(e, "sharded_baseline"))


fixed_batch = sdp4bit.on("sdp4bit_fixed_batch")


@fixed_batch("S3b", "Section 5.2, Table 1", "a worse loss, by up to 12 %", foil=NO_DIFFERENCES)
def _(e: Evidence) -> Effects:
    """On one batch in every step, weights quantized as they are (qW) end at 1.3 times the baseline's
    loss or more."""
    return at_least(trained(e, "qw") / trained(e, "sharded_baseline"), 1.3, null=1.0)


@table1("S4", "Section 5.2, Table 1", "-0.05 %, +0.01 %, +0.06 %", "paper")
def _(e: Evidence) -> Effects:
    """Quantized weight differences (qWD) add to the validation loss a fifth at most of what quantized
    weights add, in each of three sizes."""
    return every(keeps_loss(e, "qwd", m) for m in SIZES)


@table1("S4a", "Section 5.2, Table 1", "-0.05 %, +0.01 %, +0.06 %")
def _(e: Evidence) -> Effects:
    """Quantized weight differences (qWD) add to the validation loss a fifth at most of what quantized
    weights add."""
    return keeps_loss(e, "qwd")


@fixed_batch("S4b", "Section 5.2, Table 1", "nearly the baseline's loss")
def _(e: Evidence) -> Effects:
    """On one batch in every step, qWD and SDP4Bit add to the loss a fifth at most of what qW adds."""
    return every(
        spared(trained(e, name), trained(e, "sharded_baseline"), trained(e, "qw"))
        for name in ("qwd", "sdp4bit")
    )


@table1("S4c", "Section 3.1", "smaller errors, no number", foil=swap(experiment=("qwd", "zeropp")))
def _(e: Evidence) -> Effects:
    """With quantized differences the model is within 0.3 % of the main weights; with quantized weights
    it is 6 % off or more."""
    e = e.where(model="gpt_125m")
    differences, weights = e.weight_error(experiment="qwd"), e.weight_error(experiment="qw")
    return every(at_most(differences, 0.003, null=weights), at_least(weights, 0.06, null=0.0))


@table1("S5", "Section 5.2, Figure 5", "a plot; TLq 2.30479, TLq-HS 2.29528", "paper", foil=SMOOTHED)
def _(e: Evidence) -> Effects:
    """Of the gradients' strategies ULq ends with the highest validation loss, then TLq, then TLq-HS."""
    return falls(loss(e, name) for name in ("ulq", "tlq", "tlq_hs"))


@table1("S5a", "Section 3.2.1", "error accumulates, no number", foil=SMOOTHED)
def _(e: Evidence) -> Effects:
    """Two levels of 4 bits (ULq) have at least 1.2 times the error of 8 and 4 bits (TLq)."""
    e = e.where(model="gpt_125m")
    return at_least(e.vnmse(experiment="ulq") / e.vnmse(experiment="tlq"), 1.2, null=1.0)


@table1(
    "S5b",
    "Section 3.2.2",
    "outliers amplify errors, no number",
    foil=swap(experiment=("tlq", "tlq_hs")),
)
def _(e: Evidence) -> Effects:
    """In groups of 128 TLq turns at least 3 % of the nonzero coordinates to zero."""
    return at_least(e.zeroed_share(model="gpt_125m", experiment="tlq"), 0.03, null=0.0)


@table1("S5c", "Section 3.2.2", "the impact of outliers is mitigated, no number")
def _(e: Evidence) -> Effects:
    """With the Hadamard smoother (TLq-HS) at most 0.2 % of the nonzero coordinates turn to zero."""
    e = e.where(model="gpt_125m")
    return at_most(e.zeroed_share(experiment="tlq_hs"), 0.002, null=e.zeroed_share(experiment="tlq"))


@table1(
    "S5d",
    "Section 3.2.2",
    "the impact of outliers is mitigated, no number",
    unfailed="of all quantized gradients recorded TLq's have the largest share that turns to zero",
)
def _(e: Evidence) -> Effects:
    """The Hadamard smoother lowers the share of nonzero coordinates that turn to zero, with every seed."""
    e = e.where(model="gpt_125m")
    return below(e.zeroed_share(experiment="tlq_hs"), e.zeroed_share(experiment="tlq"))


@fixed_batch("S5e", "Section 5.2, Figure 5", "a plot; TLq 2.30479, TLq-HS 2.29528", foil=SMOOTHED)
def _(e: Evidence) -> Effects:
    """On one batch in every step ULq ends with the highest loss, then TLq, then TLq-HS."""
    return falls(trained(e, name) for name in ("ulq", "tlq", "tlq_hs"))


@table1("S22", "Figure 9", "a plot, no number", foil=swap(experiment=("sdp4bit", "qw")))
def _(e: Evidence) -> Effects:
    """On slow links SDP4Bit reaches 1.05 times the baseline's final perplexity before the baseline and
    before ZeRO++, with every seed."""
    e = e.where(model="gpt_125m")
    return every(
        below(e.tta(1.05, experiment="sdp4bit"), e.tta(1.05, experiment="sharded_baseline")),
        below(e.tta(1.05, experiment="sdp4bit"), e.tta(1.05, experiment="zeropp")),
    )


@table1("S22a", "Figure 1", "a plot, no number", foil=swap(experiment=("zeropp", "tlq_hs")))
def _(e: Evidence) -> Effects:
    """ZeRO++ (qW and ULq) ends with the highest validation loss of all eight strategies, with every seed: the
    order alone, not how far it is above."""
    return every(
        above(loss(e, "zeropp"), loss(e, name))
        for name in ("sharded_baseline", "qw", "qwd", "ulq", "tlq", "tlq_hs", "sdp4bit")
    )


@table1("S21", "Abstract, Section 1", "nearly 4 bits", foil=swap(experiment=("sdp4bit", "tlq_hs")))
def _(e: Evidence) -> Effects:
    """Weights travel in nearly 4 bits: at most 4.1 by their bytes over those of 16 bits, scales and
    padding included."""
    e = e.where(case="weights", model="gpt_125m")
    share = e.figure("bytes_sent", experiment="sdp4bit") / e.figure(
        "bytes_sent", experiment="sharded_baseline"
    )
    return at_most(16 * share, 4.1, null=16.0)


@table1("S21a", "Abstract, Section 1", "nearly 4 bits", foil=swap(experiment=("tlq_hs", "sharded_baseline")))
def _(e: Evidence) -> Effects:
    """Gradients travel in nearly 4 bits: at most 4.4 per coordinate, inside nodes and between them together,
    scales and padding included."""
    e = e.where(case="reduce_scatter", model="gpt_125m")
    share = e.figure("bytes_sent", experiment="tlq_hs") / e.figure(
        "bytes_sent", experiment="sharded_baseline"
    )
    return at_most(32 * share, 4.4, null=32.0)


@table1("S21b", "Abstract, Section 1", "nearly 4 bits", foil=swap(experiment=("tlq_hs", "sharded_baseline")))
def _(e: Evidence) -> Effects:
    """Between nodes gradients travel in nearly 4 bits: at most 4.3 per coordinate, scales and padding
    included. (Weights cross in between, the same coordinates; their part follows from qWD's bytes.)"""
    e = e.where(model="gpt_125m")
    share = e.figure("bytes_sent", case="weights", experiment="qwd") / e.figure(
        "bytes_sent", case="weights", experiment="sharded_baseline"
    )
    exact, quantized, both = (
        e.figure("wire_bits_by_level.node", experiment=name) for name in ("sharded_baseline", "qwd", "tlq_hs")
    )
    weights = (exact - quantized) / (1 - share)
    return at_most(16 * ((both - weights) / weights), 4.3, null=32.0)
