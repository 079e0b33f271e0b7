"""Refused combinations of settings, as lists of rules with a condition and a message."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gradwire.codecs.registry import codec_class
from gradwire.harness.record.settings import Configuration
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.runtime.program import program
from gradwire.harness.trainer.settings import RunConfig, WorldConfig

Checked = TypeVar("Checked", bound=Configuration)


@dataclass(frozen=True)
class Refusal(Generic[Checked]):
    """One rule. `says` is the message, a format string that refers to settings of the configuration in
    braces."""

    says: str
    when: Callable[[Checked], bool]


def check(rules: Sequence[Refusal[Checked]], config: Checked) -> None:
    """Raises ConfigError for the first rule that refuses `config`."""
    for rule in rules:
        if rule.when(config):
            raise ConfigError(rule.says.format(program=program(), **vars(config)))


def _uses_backend(run: RunConfig) -> bool:
    """True if the backend sends its own messages, so that the codec is not used."""
    return codec_class(run.codec["name"]).traits.uses_backend


GIVEN: tuple[Refusal[RunConfig], ...] = (
    Refusal(
        "train.steps=null and train.epochs=null: a run needs a length; set train.steps=<steps>",
        lambda run: run.train.steps is None and run.train.epochs is None,
    ),
    Refusal(
        "train.schedule=steps with train.decay_epochs=null and train.decay_steps=null: when the rate falls "
        "is open; set train.decay_epochs=<passes over the data>",
        lambda run: (
            run.train.schedule == "steps" and run.train.decay_steps is None and run.train.decay_epochs is None
        ),
    ),
    Refusal(
        "codec={codec[name]} warms up for codec.warm_up_share of the steps, and train.steps=null; add "
        "codec.steps=<steps of the run>, or codec.warm_up_share=0",
        lambda run: bool(run.codec.get("warm_up_share")) and run.codec["steps"] is None,
    ),
    Refusal(
        "cluster.restarts={cluster.restarts} has no effect under torchrun, which starts the ranks; use "
        "torchrun --max-restarts {cluster.restarts}",
        lambda run: run.cluster.restarts > 0 and run.cluster.name == "local" and "RANK" in os.environ,
    ),
)
"""Settings that leave the run's length open, or contradict each other."""

SHAPED: tuple[Refusal[WorldConfig], ...] = (
    Refusal(
        "network=shaped needs a process for each worker and cluster=virtual has one for all; use "
        "network=simulated, or cluster=local",
        lambda run: run.cluster.name == "virtual",
    ),
    Refusal(
        "network=shaped cannot be used with cluster.backend=nccl: it shapes what gloo sends from CPU memory; "
        "leave cluster.backend out, or use cluster=virtual network=simulated",
        lambda run: run.cluster.backend == "nccl",
    ),
    Refusal(
        "network=shaped cannot be used with cluster.device=cuda: it shapes what gloo sends from CPU memory; "
        "leave cluster.device out, or use cluster=virtual network=simulated",
        lambda run: run.cluster.device == "cuda",
    ),
    Refusal(
        "network=shaped starts its workers inside their namespaces and cannot run under torchrun; use "
        "{program}, or network=paced",
        lambda run: "RANK" in os.environ,
    ),
)
"""Requirements of links shaped by the kernel, which need real workers of this command."""

TOGETHER: tuple[Refusal[RunConfig], ...] = (
    Refusal(
        "parallel=pipeline so far sends activations between processes only on CPUs; use cluster=virtual or "
        "cluster.device=cpu",
        lambda run: (
            run.parallel.name == "pipeline" and run.cluster.device == "cuda" and run.cluster.name != "virtual"
        ),
    ),
    Refusal(
        "measure.save_gradients_at={measure.save_gradients_at} keeps gradients of the whole model, which no "
        "worker of parallel=pipeline has; use parallel=ddp, or leave it out",
        lambda run: bool(run.measure.save_gradients_at) and run.parallel.name == "pipeline",
    ),
    Refusal(
        "codec={codec[name]} needs a process group and cluster=virtual has none; use codec=fp32",
        lambda run: (
            _uses_backend(run)
            and run.cluster.name == "virtual"
            and run.cluster.size > 1
            and run.network.name == "simulated"
        ),
    ),
    Refusal(
        "codec={codec[name]} needs a process group and cluster=virtual has none; use cluster=local or "
        "codec=fp32",
        lambda run: _uses_backend(run) and run.cluster.name == "virtual" and run.cluster.size > 1,
    ),
    Refusal(
        "measure.save_weights_at={measure.save_weights_at} needs main weights, and parallel={parallel.name} "
        "has none here; use parallel=sharded with parallel.main=algorithm2, or leave it out",
        lambda run: bool(run.measure.save_weights_at) and getattr(run.parallel, "main", "") != "algorithm2",
    ),
    Refusal(
        "codec={codec[name]} cannot be paced, because the backend sends its own messages; use "
        "network=none or codec=fp32",
        lambda run: _uses_backend(run) and run.network.name == "paced",
    ),
    Refusal(
        "network=paced works with cluster.backend=gloo or cluster=virtual, not with nccl; add "
        "cluster.backend=gloo",
        lambda run: (
            run.network.name == "paced" and run.cluster.name == "local" and run.cluster.backend == "nccl"
        ),
    ),
)
"""Choices that are valid individually but cannot be combined, checked after every `auto` has been
resolved.
"""
