"""Whether a folder's weights, tokenizer and labels fit together, looked at before a run starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gradwire.harness.data.prepare import labels_of
from gradwire.harness.data.settings import DatasetConfig
from gradwire.harness.data.tokenizer import own_tokenizer
from gradwire.harness.files.folders import files_in
from gradwire.harness.models.build import quiet_transformers, without_values
from gradwire.harness.models.described import kind_of
from gradwire.harness.models.folder import described
from gradwire.harness.models.settings import ModelConfig, RecipeConfig
from gradwire.harness.models.weights import FOLDER_WAYS_OUT, WAYS_OUT
from gradwire.harness.trainer.settings import RunConfig

_loaded: set[tuple[object, ...]] = set()
"""The models that this process has found to load, with the state of their folders."""


def check_folder_loads(run: RunConfig) -> None:
    """Refuse weights, a tokenizer or labels in a folder that do not fit together. Raises ValueError in one
    line. Of weights the headers are read."""
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
