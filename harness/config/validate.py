"""Every refusal that needs no running worker, and the replacement of every `auto`.

`validate` is the one place a configuration passes before anything starts: under torchrun before the
process group, in a sweep before the first cell, in tests without Hydra's main.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from gradwire.codecs.registry import codec_class, make_codec
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule, topology
from gradwire.harness.config.cluster import resolve_cluster, resolve_device
from gradwire.harness.config.compose import conf_directory
from gradwire.harness.config.explain import OPTIONAL_GROUPS, ROOT_KEYS, broken_reference, plain
from gradwire.harness.config.kernels import resolve_kernels
from gradwire.harness.config.memory import check_memory
from gradwire.harness.config.network_checks import check_codec_times, check_simulated
from gradwire.harness.config.store import group_schemas
from gradwire.harness.config.task_keys import check_root
from gradwire.harness.config.tasks import TASKS, Task
from gradwire.harness.data.available import dataset_available
from gradwire.harness.data.settings import DatasetConfig, at_most_evaluated, resolve_dataset
from gradwire.harness.data.text import TextCorpus
from gradwire.harness.models.families import FAMILIES
from gradwire.harness.models.settings import ModelConfig, check
from gradwire.harness.models.weights import tokenizer_available, weights_available
from gradwire.harness.runtime.errors import ConfigError, shortened
from gradwire.harness.runtime.fields import check_fields
from gradwire.harness.tracking.login import check_tracking
from gradwire.harness.trainer.saved_gradients import check_saved_steps

Result = TypeVar("Result")


def validate(config: DictConfig) -> DictConfig:
    """A resolved, read-only copy of a composed configuration that can be run as it is.

    Interpolations and every `auto` or null that stands for something are replaced: `dataset`'s,
    `cluster.workers`, `cluster.backend`, `cluster.device`, `network.nodes`, `kernels`,
    `train.accumulation`, `train.precision`. Raises ConfigError in one line: field, value, what is
    allowed, the fix.
    """
    task_of(config)
    resolved = _resolve(config)
    _check_groups(resolved)
    _check_common(resolved)
    _check_model(resolved)
    _check_length(resolved)
    resolve_cluster(resolved)
    check_codec_times(resolved.network, _plain(resolved.codec), resolved.cluster.workers)
    _resolve_kernels(resolved)
    check_tracking(resolved)
    _resolve_accumulation(resolved)
    _check_together(resolved)
    _check_parallel(resolved)
    check_memory(resolved)
    OmegaConf.set_readonly(resolved, True)
    return resolved


def task_of(config: DictConfig) -> Task:
    """The task that `config` asks for; ConfigError if there is no such task."""
    _check_name("task", config.task.name, TASKS)
    return TASKS[config.task.name]


def validate_task(config: DictConfig) -> DictConfig:
    """A resolved, read-only copy of what a task that trains nothing reads: its own keys and its groups.

    A task that keeps results has checks of its own. Nothing else is looked at: models, data and packages that
    a run would need may be missing.
    """
    ignored = ignored_keys(task_of(config))
    resolved = OmegaConf.masked_copy(config, [str(key) for key in config if key not in ignored])
    OmegaConf.set_readonly(resolved, False)
    _resolve_in_place(resolved)
    _check_groups(resolved)
    _check_common(resolved)
    if "cluster" in resolved:
        resolve_device(resolved)
    if "network" in resolved and resolved.network.name == "simulated":
        check_simulated(resolved.network)
    if "kernels" in resolved:
        _resolve_kernels(resolved)
    if "tracking" in resolved:
        check_tracking(resolved)
    if task_of(config).keeps:
        refused_as_config_error(importlib.import_module(task_of(config).module).check, resolved)
    OmegaConf.set_readonly(resolved, True)
    return resolved


def validate_any(config: DictConfig) -> DictConfig:
    """`validate` or `validate_task`, as the configuration's task wants it."""
    return validate(config) if task_of(config).trains else validate_task(config)


def ignored_keys(task: Task) -> set[str]:
    """The root keys that have no effect on a task which trains nothing."""
    return {*ROOT_KEYS, *OPTIONAL_GROUPS, *group_schemas()} - {"task", *task.groups}


def refused_as_config_error(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """`function`'s result; its ValueError, which is already one line, as ConfigError."""
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def typed(node: DictConfig) -> Any:
    """The dataclass instance a group was composed from, with this configuration's values."""
    return OmegaConf.to_object(node)


def _resolve(config: DictConfig) -> DictConfig:
    resolved = copy.deepcopy(config)
    OmegaConf.set_readonly(resolved, False)
    if "hydra" in resolved:
        OmegaConf.set_struct(resolved, False)
        del resolved["hydra"]
        OmegaConf.set_struct(resolved, True)
    family = plain(resolved, "model.family")
    if family not in FAMILIES:  # before resolving: sizes look values up by family
        given = cast(dict[str, Any], OmegaConf.to_container(resolved.model, resolve=False))["family"]
        raise ConfigError(f"model.family={shortened(given)} is unknown; choose one of {', '.join(FAMILIES)}")
    _resolve_in_place(resolved)
    return resolved


def _resolve_in_place(config: DictConfig) -> None:
    try:
        OmegaConf.resolve(config)
        missing = OmegaConf.missing_keys(config)
    except (OmegaConfBaseException, MissingMandatoryValue, ValueError, RecursionError):
        raise broken_reference(config) from None
    for key in sorted(missing):
        raise ConfigError(f"{key} has no value; add {key}=<value>")


def _check_groups(config: DictConfig) -> None:
    """The values of every group that is there and typed."""
    for group in group_schemas():
        schema = OmegaConf.get_type(config[group]) if group in config else None
        if dataclasses.is_dataclass(schema):
            check_fields(cast(type, schema), dict(config[group]), group)


def _plain(node: DictConfig) -> dict[str, Any]:
    return {str(key): value for key, value in cast(dict[str, Any], OmegaConf.to_container(node)).items()}


def _check_name(group: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        names = ", ".join(sorted(known))
        raise ConfigError(
            f"{group}.name={name} is unknown; choose one of {names}, e.g. {group}={next(iter(known))}"
        )


def _check_common(config: DictConfig) -> None:
    """Checks what means the same in every task that reads it."""
    if "topology" in config:
        refused_as_config_error(topology, config.topology.name)
    check_root(config, config.task.name)
    if "cluster" in config and config.cluster.restarts and config.task.name != "train":
        raise ConfigError(
            f"cluster.restarts={config.cluster.restarts} has no effect on task={config.task.name}, which "
            "keeps no checkpoints; leave it out"
        )
    if "codec" in config:
        refused_as_config_error(make_codec, **_plain(config.codec))
        # Its schema is made from the codec's class and the common options, and no worker could import it.
        config.codec = OmegaConf.create(_plain(config.codec), flags={"struct": True})


def _resolve_kernels(config: DictConfig) -> None:
    refused_as_config_error(resolve_kernels, config, timed=task_of(config).times)


def _check_model(config: DictConfig) -> None:
    """Model, data and weights: what is asked for must exist, without reading all of it."""
    model: ModelConfig = typed(config.model)
    refused_as_config_error(check, model)
    _check_dataset(config, model)
    reason = weights_available(model) or tokenizer_available(model)
    if reason is not None:
        raise ConfigError(reason)


def _check_dataset(config: DictConfig, model: ModelConfig) -> None:
    dataset: DatasetConfig = refused_as_config_error(
        resolve_dataset, typed(config.dataset), model, config.size.name, conf_directory() / "dataset"
    )
    if dataset.path is not None:
        refused_as_config_error(TextCorpus(Path(dataset.path).expanduser()).fingerprint)
    dataset = at_most_evaluated(dataset, config.eval.max_sequences)
    reason = dataset_available(dataset, model)
    if reason is not None:
        paper = f"dataset=auto: model={model.name} at size={config.size.name} trains on {dataset.name}; "
        raise ConfigError((paper if config.dataset.name == "auto" else "") + reason)
    config.dataset.update(dataclasses.asdict(dataset))


def _check_length(config: DictConfig) -> None:
    """Steps against epochs: one of them says how long, and none is ignored silently."""
    train, recipe = config.train, config.model.recipe
    if train.steps is None and train.epochs is None:
        raise ConfigError(
            "train.steps=null and train.epochs=null: a run needs a length; set train.steps=<steps>"
        )
    if train.steps is not None:
        refused_as_config_error(check_saved_steps, config.measure.save_gradients_at, train.steps)
    for by_steps, by_epochs, usual in (
        ("steps", "epochs", recipe.epochs),
        ("schedule_steps", "schedule_epochs", recipe.schedule_epochs),
    ):
        # The recipe's own epochs may stay beside steps: they come from the preset, not from the user.
        if None not in (train[by_steps], train[by_epochs]) and train[by_epochs] != usual:
            raise ConfigError(
                f"train.{by_epochs}={train[by_epochs]} has no effect while "
                f"train.{by_steps}={train[by_steps]}; add train.{by_steps}=null, or leave it out"
            )


def _resolve_accumulation(config: DictConfig) -> None:
    """`train.batch`, which counts all workers, in forward passes of each worker."""
    train, workers = config.train, config.cluster.workers
    if train.batch is None:
        train.accumulation = train.accumulation or 1
        return
    one_pass = workers * train.micro_batch
    product = f"cluster.workers={workers} x train.micro_batch={train.micro_batch}"
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
    train.accumulation = train.batch // one_pass


def _check_parallel(config: DictConfig) -> None:
    """Asks the parallelism and its codec what they cannot do."""
    from gradwire.harness.parallel.registry import parallel_kind

    if config.topology.name not in TOPOLOGIES:  # a plug-in's schedule is proven here, before anything starts
        refused_as_config_error(make_schedule, config.topology.name, config.cluster.workers)
    kind = refused_as_config_error(parallel_kind, config.parallel.name)
    reason = kind.supports(config)
    if reason is not None:
        raise ConfigError(reason)


def _check_together(config: DictConfig) -> None:
    """Refuses choices that are fine alone but cannot be combined."""
    backend = codec_class(config.codec.name).traits.uses_backend
    paced = config.network.name == "paced"
    if backend and config.cluster.name == "virtual" and config.cluster.workers > 1:
        local = "" if config.network.name == "simulated" else "cluster=local or "
        raise ConfigError(
            f"codec={config.codec.name} needs a process group and cluster=virtual has none; use "
            f"{local}codec=fp32"
        )
    if backend and config.overlap.segments > 1:
        raise ConfigError(
            f"overlap.segments={config.overlap.segments} has no effect on codec={config.codec.name}, the "
            "backend sends by itself; leave it out or use codec=fp32"
        )
    if config.cluster.gradients != "auto" and config.cluster.name == "local":
        raise ConfigError(
            f"cluster.gradients={config.cluster.gradients} has no effect on cluster=local, whose workers "
            "keep their own; leave it out or use cluster=virtual"
        )
    if backend and paced:
        raise ConfigError(
            f"codec={config.codec.name} cannot be paced, the backend sends by itself; use network=none or "
            "codec=fp32"
        )
    if paced and config.cluster.name == "local" and config.cluster.backend == "nccl":
        raise ConfigError(
            "network=paced works with cluster.backend=gloo or cluster=virtual, not with nccl; add "
            "cluster.backend=gloo"
        )
