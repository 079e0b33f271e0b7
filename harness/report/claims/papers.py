"""The claims of all papers."""

from __future__ import annotations

from gradwire.harness.report.claims.aqgb import aqgb
from gradwire.harness.report.claims.aqgb_study import aqgb_study
from gradwire.harness.report.claims.claim import Claim, Claims
from gradwire.harness.report.claims.dynamiq import dynamiq
from gradwire.harness.report.claims.dynamiq_pretrained import dynamiq_pretrained
from gradwire.harness.report.claims.dynamiq_printed import dynamiq_printed
from gradwire.harness.report.claims.dynamiq_scaling import dynamiq_scaling
from gradwire.harness.report.claims.dynamiq_techniques import dynamiq_techniques
from gradwire.harness.report.claims.edgc import edgc
from gradwire.harness.report.claims.edgc_gradients import edgc_gradients
from gradwire.harness.report.claims.edgc_pretrained import edgc_pretrained
from gradwire.harness.report.claims.sdp4bit import sdp4bit
from gradwire.harness.report.claims.sdp4bit_groups import sdp4bit_groups
from gradwire.harness.report.claims.sdp4bit_pretrained import sdp4bit_pretrained
from gradwire.harness.report.claims.sdp4bit_printed import sdp4bit_printed
from gradwire.harness.report.claims.sdp4bit_studies import sdp4bit_studies
from gradwire.harness.report.claims.sdp4bit_throughput import sdp4bit_throughput

CLAIMS: tuple[Claims, ...] = (
    *(dynamiq, dynamiq_scaling, dynamiq_techniques, dynamiq_pretrained, dynamiq_printed),
    *(sdp4bit, sdp4bit_groups, sdp4bit_studies, sdp4bit_throughput),
    *(sdp4bit_pretrained, sdp4bit_printed),
    *(edgc, edgc_gradients, edgc_pretrained, aqgb, aqgb_study),
)
"""In the order in which each paper's are shown."""


def claims_on(sweep: str) -> list[Claim]:
    """The claims that records of a sweep decide, alone or with others."""
    return [claim for each in CLAIMS for claim in each.found if sweep in claim.sweeps]
