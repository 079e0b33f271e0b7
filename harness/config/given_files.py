"""Refusals of files given to a run: a checkpoint to begin with, decisions, a model's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradwire.codecs.decision_file import read_decisions
from gradwire.codecs.registry import make_codec
from gradwire.harness.checkpoint.folder import STATE, CheckpointReader, verified
from gradwire.harness.data.prepare import labels_of
from gradwire.harness.data.settings import DatasetConfig
from gradwire.harness.data.tokenizer import own_tokenizer
from gradwire.harness.files.hostile import files_in
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.models.build import quiet_transformers, without_values
from gradwire.harness.models.described import kind_of
from gradwire.harness.models.folder import described
from gradwire.harness.models.settings import ModelConfig, RecipeConfig
from gradwire.harness.models.weights import FOLDER_WAYS_OUT, WAYS_OUT
from gradwire.harness.network.settings import FROM_FILE, MEASURED, SHARED, NetworkConfig, ShapedConfig
from gradwire.harness.parallel.state import CODEC_PART
from gradwire.harness.record.directory import found_profiles
from gradwire.harness.record.identity import computation_id, computation_of, decided_about
from gradwire.harness.record.profiles import computation_text, computations_text, read_profiles
from gradwire.harness.record.seal import check_sealed_decisions
from gradwire.harness.runtime.errors import ConfigError, did_you_mean, refused_as_config_error
from gradwire.harness.trainer.settings import RunConfig, WorldConfig

CHECKPOINTS = "outputs/<run>/checkpoints/step-<number>"


def check_start(run: RunConfig) -> None:
    """Raises ConfigError unless `train.start_from` is null or a checkpoint that this run can start from."""
    given = run.train.start_from
    if given is None:
        return
    start = f"train.start_from={given}"
    if run.parallel.name != "sharded":
        raise ConfigError(
            f"{start} needs parallel=sharded, whose checkpoints any number of workers can load; leave it "
            "out: the same command resumes a run by itself"
        )
    path = Path(given).expanduser()
    if not path.is_dir():
        raise ConfigError(f"{start}: no such folder; use {CHECKPOINTS}")
    if not (path / STATE).is_file():
        raise ConfigError(f"{start}: holds no checkpoint; use {CHECKPOINTS}")
    state = refused_as_config_error(lambda: verified(path, CheckpointReader(path).state.run_id))
    workers = len(state.train_time_s)
    if workers != run.cluster.size and any(name.startswith(CODEC_PART) for name in state.files):
        raise ConfigError(
            f"{start} is of {workers} workers, whose codecs have state that cluster.workers="
            f"{run.cluster.size} cannot share; use cluster.workers={workers}"
        )
    if run.train.steps is not None and state.step >= run.train.steps:
        raise ConfigError(
            f"{start} is of step {state.step}, and train.steps={run.train.steps} ends no later; choose more"
        )


def check_decisions(run: RunConfig) -> None:
    """Refuses decisions that a training run cannot follow, and codecs whose decisions it cannot make."""
    given = run.codec.get("decisions")
    if given is None:
        check_clock(run, ", or add codec.decisions=<file of another run>")
        return
    followed = refused_as_config_error(read_decisions, given)
    refused_as_config_error(check_sealed_decisions, followed)
    refused_as_config_error(followed.check_settings, decided_about(run.mapping()))
    refused_as_config_error(make_codec, **run.codec)


def check_clock(config: WorldConfig, otherwise: str = "") -> None:
    """Refuses a clock-driven codec for real workers that do not record when they send. `otherwise` names an
    alternative."""
    measure = config.measure
    if config.cluster.name == "virtual" or (measure.trace and measure.spans):
        return
    if make_codec(**config.codec).traits.clock_driven:
        raise ConfigError(
            f"measure.{'trace' if measure.spans else 'spans'}=false cannot be used with "
            f"codec={config.codec['name']}, whose decisions follow from the times of messages; leave it out"
            f"{otherwise}"
        )


def check_compute(network: NetworkConfig, settings: Mapping[str, Any]) -> NetworkConfig:
    """Refuse unknown values of `network.compute`, and a profile without the computation of a run with
    these plain settings. Raises ConfigError.

    Returns the network; `compute`, where it names a run, a sweep or a file, with the absolute path.
    """
    if isinstance(network, ShapedConfig):
        return network
    _check_compute_value(network.compute)
    if not network.compute.startswith(FROM_FILE):
        return network
    given = network.compute.removeprefix(FROM_FILE)
    try:
        path = found_profiles(Path(given))
        found = read_profiles(path)
    except UnusableFileError as error:
        named = f"{error.problem}; {error.remedy}" if error.path == Path(given) else str(error)
        raise ConfigError(f"network.compute={network.compute}: {named}") from None
    if found.computation(computation_id(settings)) is None:
        raise ConfigError(
            f"network.compute={network.compute} has no computation of these settings "
            f"({computation_text(computation_of(settings))}), only: {computations_text(found)}; give another "
            "profile, or leave it out"
        )
    return replace(network, compute=f"{FROM_FILE}{path}")


def _check_compute_value(compute: str) -> None:
    known = (SHARED, MEASURED)
    if compute not in known and not compute.startswith(FROM_FILE):
        raise ConfigError(
            f"network.compute={compute}: use {SHARED}, {MEASURED} or {FROM_FILE}<profile>"
            f"{did_you_mean(compute, known)}"
        )
    if compute == FROM_FILE:
        raise ConfigError(
            f"network.compute={compute} names no file; use {FROM_FILE}<profile>, e.g. {FROM_FILE}"
            "outputs/sweeps/demo"
        )


_loaded: set[tuple[object, ...]] = set()
"""The models that this process has already loaded successfully, with the state of their folders."""


def check_folder_loads(run: RunConfig) -> None:
    """Refuse weights, a tokenizer or labels in a folder that do not fit together. Raises ValueError in one
    line. Only the headers of weights are read."""
    model = run.model
    if model.path is None or not (model.is_folder or model.weights == "pretrained"):
        return
    remedy = FOLDER_WAYS_OUT if model.is_folder else WAYS_OUT
    folder = Path(model.path).expanduser()
    states = [(path, path.stat()) for path in files_in(folder, remedy=remedy)]
    contents = tuple(sorted((str(path), state.st_size, state.st_mtime_ns) for path, state in states))
    labels = labels_of(run.dataset) if model.objective == "classification" else ()
    key = (repr(replace(model, name="", recipe=RecipeConfig())), labels, contents)
    if key in _loaded:
        return
    _check_labels(model, run.dataset, labels)
    quiet_transformers()
    _check_known(model)
    made = without_values(model, labels)
    _check_tokenizer(model, made.config.pad_token_id)
    _loaded.add(key)


def _check_labels(model: ModelConfig, dataset: DatasetConfig, labels: Sequence[str]) -> None:
    found = described(model)
    if found is None or found.kind != "classification" or found.num_labels == len(labels):
        return
    raise ValueError(
        f"model.path={model.path}: its head tells {found.num_labels} labels apart, and "
        f"dataset={dataset.name} has {len(labels)} ({', '.join(labels)}); use data with as many, or a masked "
        "model, which gets a new head"
    )


def _check_known(model: ModelConfig) -> None:
    from transformers import CONFIG_MAPPING, __version__

    if model.is_folder and kind_of(model.architecture) and model.family not in CONFIG_MAPPING:
        found = described(model)
        if found is None or found.model_type not in CONFIG_MAPPING:
            raise ValueError(
                f"model.path={model.path}: its config.json says model_type={model.family}, which "
                f"transformers {__version__} does not have, and code of a folder is never run; use another "
                "model"
            )


def _check_tokenizer(model: ModelConfig, padding: object) -> None:
    tokenizer = own_tokenizer(model)
    assert tokenizer is not None, "a folder has or is given one"
    source = model.tokenizer or model.path
    entries = max(tokenizer.get_vocab().values()) + 1
    if entries > model.vocab_size:
        raise ValueError(
            f"the tokenizer of {source} has {entries} entries, and the model in {model.path} embeds "
            f"{model.vocab_size}; use the tokenizer that the model was trained with"
        )
    if model.objective == "masked" and tokenizer.mask_token_id is None:
        raise ValueError(
            f"model.objective=masked: the tokenizer of {source} has no mask token; use the one that the "
            "model was trained with"
        )
    if model.objective == "classification" and padding != tokenizer.pad_token_id:
        raise ValueError(
            f"model.objective=classification: the tokenizer of {source} pads with {tokenizer.pad_token_id}, "
            f"and the model's config.json has pad_token_id={padding}; make them agree"
        )
