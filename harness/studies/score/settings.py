"""The settings of `task=score`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from gradwire.codecs.fields import NOTHING
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.fields import at_least, checked, one_of
from gradwire.harness.tracking.settings import TrackingConfig


@dataclass(frozen=True)
class ScoreConfig:
    """Which documents are scored, and how."""

    data: str | None = None  # a folder with the benchmarks' files (docs/scoring.md); null: the hub
    limit: int | None = at_least(1, None, 10**9)  # documents of each task, the first ones; null: all
    batch: int = at_least(1, 16, 65_536)  # requests that go through the model together
    device: str = one_of("auto", "cpu", "cuda")  # auto: cuda where there is one
    threads: int = at_least(1, 1, 1024)  # of the CPU; another number gives other last bits
    digest: str | None = checked(None, kinds=(NOTHING,), optional=True)  # of the weights and the data


@dataclass(frozen=True, kw_only=True)
class ScoreTask(RecordedConfig):
    """A finished checkpoint on published benchmarks."""

    checkpoint: str  # a finished run's directory, a Hugging Face folder, or a name on the hub
    # arc_easy, arc_challenge, hellaswag, openbookqa, piqa, winogrande, mmlu; of a masked model masked_lm, of
    # a classifier sst2, rte or cola; null: all that fit
    tasks: list[str] | None = checked(dataclasses.MISSING, fewest=1, unique=True)
    score: ScoreConfig
    tracking: TrackingConfig
