"""SDP4Bit's claims on a pretrained model that is fine-tuned: MiniLM on SST-2."""

from __future__ import annotations

from gradwire.harness.report.claims.claim import Chance, Claims
from gradwire.harness.report.claims.effects import Effects, above, spared
from gradwire.harness.report.claims.evidence import Evidence, swap

sdp4bit_pretrained = Claims("SDP4Bit")

SST2 = Chance(0.509, 872, lambda e: e.final_metric(experiment="sharded_baseline", configuration="sst2"))
"""Answering "positive" to every sentence of SST-2's validation."""

glue = sdp4bit_pretrained.on("pretrained_glue")


@glue("S40", "Section 5.2, Table 1", "+0.09 %, +0.12 %, +0.24 % of the loss", chance=SST2)
def _(e: Evidence) -> Effects:
    """Fine-tuned on SST-2, SDP4Bit ends with the baseline's loss (a fifth at most of what quantized weights,
    qW, add)."""
    e = e.where(configuration="sst2")
    names = ("sdp4bit", "sharded_baseline", "qw")
    return spared(*(e.last("loss", experiment=name) for name in names))


@glue(
    *("S41", "Section 5.2, Table 1", "+12.17 %, +8.95 %, +6.14 %"),
    chance=SST2,
    foil=swap(experiment=("qw", "sdp4bit")),
)
def _(e: Evidence) -> Effects:
    """Fine-tuned on SST-2, weights quantized as they are (qW) end with a higher loss than the baseline, with
    every seed."""
    e = e.where(configuration="sst2")
    return above(e.last("loss", experiment="qw"), e.last("loss", experiment="sharded_baseline"))
