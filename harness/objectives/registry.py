"""All objectives by name. A new one is a file in this folder and an entry here."""

from __future__ import annotations

from collections.abc import Mapping

from gradwire.harness.data.token_data import PreparedData
from gradwire.harness.objectives.examples import Choice, Classification, ImageClassification
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.objectives.text import Causal, Masked

OBJECTIVES: Mapping[str, type[Objective]] = {
    "causal": Causal,
    "masked": Masked,
    "choice": Choice,
    "classification": Classification,
    "image_classification": ImageClassification,
}
"""The values of `model.objective`."""


def make_objective(name: str, data: PreparedData, num_segments: int = 2) -> Objective:
    """The objective `name` on `data`, which must be of its kind, for a model that distinguishes this many
    segments."""
    return OBJECTIVES[name](data, num_segments)
