"""The settings of `train`, `eval`, `measure`, `kernels` and `size`, and all settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradwire.codecs.fields import RANGE, WHOLE, above, at_least, between, list_of, one_of, plain_name
from gradwire.harness.comm.settings import GRAPHS, ClusterConfig, OverlapConfig, TopologyConfig
from gradwire.harness.data.settings import DatasetConfig
from gradwire.harness.models.settings import OPTIMIZERS, SCHEDULES, ModelConfig
from gradwire.harness.network.settings import NetworkConfig
from gradwire.harness.parallel.settings import ParallelConfig
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.tracking.settings import TrackingConfig

LONGEST_RUN = 10**9
"""The largest number of optimizer steps that may be set."""


@dataclass(frozen=True)
class TrainConfig:
    """The training loop: length, batch, optimizer, the learning-rate schedule, precision."""

    steps: int | None = at_least(1, None, LONGEST_RUN)  # optimizer steps; null: as many as `epochs` need
    epochs: float | None = at_least(1e-6, None, 1e6)  # passes over the training data, unless `steps` is set
    micro_batch: int = at_least(1, 1, 65_536)  # sequences per worker in one forward pass
    # forward passes per worker and step; null: as `batch` needs
    accumulation: int | None = at_least(1, None, 1e6)
    # sequences of all workers in one step; null: as they come
    batch: int | None = at_least(1, None, LONGEST_RUN)
    # learning rate after warm-up; null: the recipe's, reduced for a batch smaller than `size.lr_batch`
    lr: float | None = between(0, 1e30, 1e-4, low_included=False)
    optimizer: str = one_of(*OPTIMIZERS)  # AdamW, Adam, or SGD with momentum
    weight_decay: float = between(0, 100, 0.01)  # of matrices: AdamW's is decoupled, the others' L2
    beta1: float = between(0, 0.999999, 0.9)  # AdamW's and Adam's mean of gradients
    beta2: float = between(0, 0.999999, 0.999)  # AdamW's and Adam's mean of squared gradients
    adam_epsilon: float = between(1e-30, 1, 1e-8)  # AdamW's and Adam's denominator term
    momentum: float = between(0, 0.999999, 0.9)  # SGD's; 0: none
    # optimizer steps in which the rate climbs linearly from 0 to `lr`
    warmup_steps: int = at_least(0, 0, LONGEST_RUN)
    # shape of the decay after warm-up; steps: the rate is multiplied by `decay_factor` again and again
    schedule: str = one_of(*SCHEDULES)
    end_factor: float = between(0, 1, 1.0)  # final learning rate as a multiple of `lr`
    # optimizer steps by which the rate has fallen, warm-up included; null: use `schedule_epochs`
    schedule_steps: int | None = at_least(1, None, LONGEST_RUN)
    # likewise in passes over the data; both null: the whole run
    schedule_epochs: float | None = at_least(1e-6, None, 1e6)
    # of schedule=steps: optimizer steps between two decays; null: use `decay_epochs`
    decay_steps: int | None = at_least(1, None, LONGEST_RUN)
    decay_epochs: float | None = at_least(1e-6, None, 1e6)  # likewise in passes over the data
    decay_factor: float = between(0, 1, 0.1, low_included=False)  # by which schedule=steps multiplies
    # gradients longer than this are scaled down; null: never
    clip_norm: float | None = between(1e-12, 1e12, 1.0)
    # most consecutive steps that may be skipped for non-finite gradients; one more ends the run as diverged
    max_skipped: int = between(0, 1_000_000_000, 20)
    precision: str = one_of("auto", "fp32", "bf16")  # of activations; auto: bf16 on GPUs, fp32 on CPUs
    # write rows at least every so many optimizer steps
    log_every: int = at_least(1, 10, LONGEST_RUN)
    save_checkpoint: bool = True  # keep the final weights in the run directory
    # optimizer steps between checkpoints; null: only when the run is stopped (SIGTERM)
    checkpoint_every: int | None = at_least(1, 500, LONGEST_RUN)
    # a checkpoint of a run with any number of workers, to continue from in a run of its own; null: step 0
    start_from: str | None = None
    keep_checkpoints: int = at_least(1, 2, 10_000)  # newest checkpoints kept while the run is not finished


@dataclass(frozen=True)
class EvalConfig:
    """The evaluation of the task metric on held-out data, while the training clock is stopped."""

    # optimizer steps between two evaluations; the last step always has one
    every: int = at_least(1, 500, LONGEST_RUN)
    max_sequences: int | None = at_least(1, None, LONGEST_RUN)  # held-out sequences used; null: all
    micro_batch: int = at_least(1, 1, 65_536)  # sequences per forward pass; does not change the metric


@dataclass(frozen=True)
class MeasureConfig:
    """Records of a run other than loss and metric."""

    # optimizer steps between two error measurements; 0: never
    vnmse_every: int = at_least(0, 10, LONGEST_RUN)
    warmup_steps: int = at_least(0, 3, 1000)  # dummy steps before the clock starts; state is restored after
    # metric values whose time-to-accuracy is reported
    targets: list[float] = list_of(low=0, high=1e30, low_included=False)
    spans: bool = True  # record compute, codec and communication spans for the breakdown
    trace: bool = True  # with spans: record what each step sent and when, for task=retime and timelines
    trace_every: int = at_least(1, 1, LONGEST_RUN)  # trace one step in every so many
    # most MB (10^6 bytes) of traces, all ranks together; at the limit fewer steps are kept
    trace_mb: float = above(0, 200.0, 1e9)
    # steps whose gradients are kept, and ranges of them: [10,100-109]
    save_gradients_at: list[Any] = list_of(kinds=(WHOLE, RANGE), low=0, high=LONGEST_RUN)
    # steps between two records of every matrix's entropy, in entropies.jsonl; 0: never
    entropy_every: int = at_least(0, 0, LONGEST_RUN)
    # shares of a gradient's coordinates that entropies are estimated from, one in 65,536 at least
    entropy_rates: list[float] = list_of([1.0], fewest=1, low=1 / 65_536, high=1)
    # steps whose weights are kept, the model's before and the main ones after: of parallel=sharded
    save_weights_at: list[int] = list_of(low=0, high=LONGEST_RUN)
    check_hashes: bool = False  # debug: compare the synchronized gradients' hashes over all ranks


@dataclass(frozen=True)
class KernelsConfig:
    """The implementation of the codecs' kernels; all implementations produce the same bytes."""

    name: str = one_of("auto", "default", "cpu", "cuda")  # auto: the fastest that are built for the device
    # which rounds are captured in CUDA graphs. auto: on GPUs, if the codec allows it; always: refuse what
    # allows none; never: none
    graphs: str = one_of(*GRAPHS)


@dataclass(frozen=True)
class SizeConfig:
    """A preset over model, train, eval and measure."""

    name: str = plain_name("paper")
    families: dict[str, Any] = field(default_factory=dict)  # fields whose value depends on model.family
    objectives: dict[str, Any] = field(default_factory=dict)  # fields that depend on model.objective
    # with train.lr=null: sequences of all workers in a step that the recipe's rate is for; null: any number
    lr_batch: int | None = at_least(1, None, LONGEST_RUN)


@dataclass(frozen=True, kw_only=True)
class WorldConfig(RecordedConfig):
    """The workers, the connections between them, and the codec."""

    codec: dict[str, Any]
    """`name` and the options of a codec, in the form that `make_codec` takes."""
    topology: TopologyConfig
    overlap: OverlapConfig
    cluster: ClusterConfig
    network: NetworkConfig
    kernels: KernelsConfig
    measure: MeasureConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig(WorldConfig):
    """A training run."""

    model: ModelConfig
    dataset: DatasetConfig
    parallel: ParallelConfig
    train: TrainConfig
    eval: EvalConfig
    tracking: TrackingConfig
    size: SizeConfig
