"""All refusals that need no running worker, and the resolution of every `auto`.

Every configuration passes `validate` before anything starts: under torchrun before the process group, in a
sweep before the first cell, in tests without Hydra's main.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from gradwire.codecs.plugins import ENTRY_POINTS, is_plugin
from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule
from gradwire.harness.config.cluster import check_graphs, resolve_cluster, resolve_device, resolve_kernels
from gradwire.harness.config.compose import compose
from gradwire.harness.config.explain import OPTIONAL_GROUPS, ROOT_KEYS, plain
from gradwire.harness.config.given_files import (
    check_compute,
    check_decisions,
    check_folder_loads,
    check_start,
)
from gradwire.harness.config.model_folder import with_shape_of_weights
from gradwire.harness.config.network_checks import (
    check_codec_times,
    check_links,
    check_spread,
)
from gradwire.harness.config.overrides import shown
from gradwire.harness.config.resources import check_memory
from gradwire.harness.config.rules import GIVEN, TOGETHER, check
from gradwire.harness.config.store import group_schemas
from gradwire.harness.config.tasks import Task
from gradwire.harness.config.typed import task_of, typed
from gradwire.harness.data.prepare import data_source, dataset_available
from gradwire.harness.data.settings import at_most_evaluated, resolve_dataset
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.models.settings import check as check_model
from gradwire.harness.models.weights import tokenizer_available, weights_available
from gradwire.harness.network.settings import NetworkConfig, with_papers_computation
from gradwire.harness.objectives.registry import OBJECTIVES
from gradwire.harness.packaged.catalogue import not_fetched, packaged_at
from gradwire.harness.parallel.settings import PASSES_PER_STAGE, BlocksConfig, PipelineConfig
from gradwire.harness.record.directory import check_saved_steps, listed_steps
from gradwire.harness.record.settings import Configuration
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.effects import no_effect
from gradwire.harness.runtime.errors import ConfigError, refused_as_config_error
from gradwire.harness.tracking.settings import check_tracking
from gradwire.harness.trainer.rates import check_warm_up, rate_for_batch
from gradwire.harness.trainer.settings import KernelsConfig, RunConfig

PRESETS = ("size", "experiment")
"""Groups that only set others, which tasks that do not read them may ignore."""


def validate(config: DictConfig) -> RunConfig:
    """The settings of a composed configuration that can be run as they are.

    Interpolations and every `auto` or null with a meaning are resolved: `dataset`'s, `cluster.workers`,
    `cluster.backend`, `cluster.device`, `network.nodes`, `kernels`, `train.accumulation`, `train.lr`,
    `train.precision`.
    Raises ConfigError in one line: field, value, allowed values, the fix.
    """
    run = cast(RunConfig, typed(config))
    _check_fetched(run.model)
    if run.model.path is not None or run.model.is_folder:
        run = refused_as_config_error(with_shape_of_weights, run)
    refused_as_config_error(check_model, run.model)
    run = _with_dataset(run)
    reason = weights_available(run.model) or tokenizer_available(run.model)
    if reason is not None:
        raise ConfigError(reason)
    if run.model.weights == "pretrained" and run.model.path is None:
        run = refused_as_config_error(with_shape_of_weights, run)
        refused_as_config_error(check_model, run.model)
    check(GIVEN, run)
    kept = refused_as_config_error(listed_steps, "save_gradients_at", run.measure.save_gradients_at)
    run = replace(run, measure=replace(run.measure, save_gradients_at=kept))
    if run.train.steps is not None:
        refused_as_config_error(check_warm_up, run.train.warmup_steps, run.train.steps)
        for key in ("save_gradients_at", "save_weights_at"):
            refused_as_config_error(check_saved_steps, key, getattr(run.measure, key), run.train.steps)
    run = resolve_cluster(run)
    run = replace(run, network=with_papers_computation(run.network, run.model.name, run.size.name))
    check_codec_times(run.network, run.codec, run.cluster.size)
    blocks = run.parallel.count if isinstance(run.parallel, BlocksConfig) else None
    check_spread(run.network, run.parallel.name, blocks)
    run = replace(run, kernels=_kernels(run.kernels, run.cluster, task_of(config)))
    check_tracking(run.tracking)
    run = _with_blocks_in_flight(_with_rate(_with_accumulation(run)))
    run = replace(run, network=check_compute(run.network, run.mapping()))
    check(TOGETHER, run)
    refused_as_config_error(check_graphs, run)
    check_decisions(run)
    check_start(run)
    check_memory(run)
    refused_as_config_error(check_folder_loads, run)
    _check_parallel(run)
    return run


def _check_fetched(model: ModelConfig) -> None:
    """Refuses packaged weights that are not here: they are fetched by a command of its own alone."""
    name = packaged_at(model.path) if model.path is not None else None
    reason = not_fetched(name) if name is not None else None
    if reason is not None:
        raise ConfigError(f"model={model.name}: {reason}")


def validate_task(config: DictConfig) -> Configuration:
    """The settings that a task without training reads: its own keys and its groups.

    A task that keeps results has its own checks. Nothing else is checked: models, data and packages that a
    run would need may be missing.
    """
    task, found = task_of(config), typed(config)
    settled: dict[str, Any] = {}
    for group in task.reads:  # in the order of the fields: kernels, after the cluster that names their device
        settings = getattr(found, group)
        if isinstance(settings, ClusterConfig):
            settled[group] = resolve_device(settings)
        elif isinstance(settings, NetworkConfig):
            settled[group] = check_links(settings)
        elif isinstance(settings, KernelsConfig):
            settled[group] = _kernels(settings, settled["cluster"], task)
        elif group == "tracking":
            check_tracking(settings)
    found = replace(found, **settled)
    if task.has_directory:
        found = refused_as_config_error(task.load().resolve, found)
    return found


def validate_any(config: DictConfig) -> Configuration:
    """The result of `validate` or `validate_task`, depending on the configuration's task."""
    task = task_of(config)
    if not task.trains:
        return validate_task(config)
    run = validate(config)
    return refused_as_config_error(task.load().resolve, run) if task.is_study else run


def check_read(config: DictConfig, overrides: Sequence[Override]) -> Iterator[str]:
    """Refuses settings that a task without training would not read; yields notes about harmless ones.

    A key with its default value changes nothing, and a preset is only noted, because scripts pass the same
    keys to all tasks. Raises ConfigError.
    """
    name, ignored = config.task.name, ignored_keys(task_of(config)) - {"hydra"}
    usual = compose([f"task={name}"])
    for override in overrides:
        key = override.key_or_group
        if key.partition(".")[0] not in ignored:
            continue
        if key == "experiment" and "parallel" in task_of(config).reads:
            continue  # it has set groups that the task reads
        if key in PRESETS:
            yield f"note: {shown(override)} has no effect with task={name}"
        elif key in ENTRY_POINTS and is_plugin(key, plain(config, f"{key}.name")):
            continue  # permits to import it, where a run that the task reads names it
        elif plain(config, key) != plain(usual, key):
            raise no_effect(shown(override), {"task": name}, "it trains nothing; leave it out")


def ignored_keys(task: Task) -> set[str]:
    """The root keys without effect on a task without training."""
    return {*ROOT_KEYS, *OPTIONAL_GROUPS, *group_schemas()} - {*task.reads}


def _kernels(kernels: KernelsConfig, cluster: ClusterConfig, task: Task) -> KernelsConfig:
    return refused_as_config_error(
        resolve_kernels, kernels, cluster.device, timed_task=task.name if task.times else None
    )


def _with_dataset(run: RunConfig) -> RunConfig:
    """Checks that the data exists, without reading all of it."""
    dataset = refused_as_config_error(
        resolve_dataset,
        run.dataset,
        run.model,
        run.size.name,
        conf_directory() / "dataset",
        OBJECTIVES[run.model.objective].kind,
    )
    if dataset.path is not None:
        refused_as_config_error(data_source(dataset).fingerprint)
    dataset = at_most_evaluated(dataset, run.eval.max_sequences)
    reason = dataset_available(dataset, run.model)
    if reason is not None:
        paper = f"dataset=auto: model={run.model.name} at size={run.size.name} trains on {dataset.name}; "
        auto = run.dataset.name == "auto"
        raise ConfigError(f"{paper}{reason}, or size=tiny" if auto else reason)
    return replace(run, dataset=dataset)


def _with_accumulation(run: RunConfig) -> RunConfig:
    """Converts `train.batch`, which counts all replicas of the model, to forward passes of each replica.
    Without the setting, a pipeline gets enough of them to be mostly full."""
    train, stages = run.train, run.parallel.stages if isinstance(run.parallel, PipelineConfig) else 1
    if train.batch is None:
        passes = train.accumulation or (PASSES_PER_STAGE * stages if stages > 1 else 1)
        return replace(run, train=replace(train, accumulation=passes))
    one_pass = _replicas(run) * train.micro_batch
    product = f"cluster.workers={run.cluster.size} x train.micro_batch={train.micro_batch}"
    if stages > 1:
        product = f"{product} / parallel.stages={stages}"
    if train.batch % one_pass:
        raise ConfigError(
            f"train.batch={train.batch} is not a multiple of {product}; change one of them, or add "
            "train.batch=null"
        )
    if train.accumulation not in (None, train.batch // one_pass):
        raise ConfigError(
            f"train.accumulation={train.accumulation} contradicts train.batch={train.batch} with {product}, "
            f"which is {train.batch // one_pass}; leave it out, or add train.batch=null"
        )
    return replace(run, train=replace(train, accumulation=train.batch // one_pass))


def _with_rate(run: RunConfig) -> RunConfig:
    """Replaces `train.lr=null` by the recipe's rate, or by the one that suits a smaller batch."""
    train, recipe = run.train, run.model.recipe
    if train.lr is not None:
        return run
    batch = _replicas(run) * train.micro_batch * (train.accumulation or 1)
    return replace(run, train=replace(train, lr=rate_for_batch(recipe.lr, batch, run.size.lr_batch)))


def _replicas(run: RunConfig) -> int:
    """The number of copies of the model that train on sequences of their own."""
    stages = run.parallel.stages if isinstance(run.parallel, PipelineConfig) else 1
    return max(1, run.cluster.size // stages)


def _with_blocks_in_flight(run: RunConfig) -> RunConfig:
    """Allows all blocks to be in flight at the same time with `parallel=blocks`; otherwise the newest would
    wait for an older one."""
    if not isinstance(run.parallel, BlocksConfig):
        return run
    buckets = max(run.parallel.count, run.overlap.buckets)
    return replace(run, overlap=replace(run.overlap, buckets=buckets))


def _check_parallel(run: RunConfig) -> None:
    """Refuses combinations that the parallelism and its codec do not support."""
    from gradwire.harness.parallel.registry import parallel_kind
    from gradwire.harness.trainer.parts import parallel_setup

    if run.topology.name not in TOPOLOGIES:  # a plug-in's schedule is proven here, before anything starts
        refused_as_config_error(make_schedule, run.topology.name, run.cluster.size)
    kind = refused_as_config_error(parallel_kind, run.parallel.name)
    reason = kind.supports(parallel_setup(run))
    if reason is not None:
        raise ConfigError(reason)
