"""Models whose files determine their shape: `model=folder`, and presets with pretrained weights.

The shape is read from config.json, so that configuration and record describe the model that is trained.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gradwire.harness.files.hostile import count_parameters
from gradwire.harness.files.reading import UnusableFileError, printable
from gradwire.harness.files.structured import read_json
from gradwire.harness.models.described import ENDINGS, OF_KIND, Described, describe
from gradwire.harness.models.families import AUTO, FAMILIES, FOLDER
from gradwire.harness.models.foreign import CONFIG, INDEX, MOST_INDEX
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.models.vision import OBJECTIVE, VISION
from gradwire.harness.models.weights import FOLDER_WAYS_OUT, WAYS_OUT, WEIGHTS_FILE, weights_available

MOST_NAME = 40
"""The largest number of characters of a folder's name used in a run's name."""

UNBOUNDED = 1 << 24
"""The context of a model without a limit on positions: the maximum of `model.context`."""

_NO_NAMES = re.compile(r"checkpoint|[0-9a-f]{40}")
"""Folders with automatically chosen names: those of a run's weights and of the hub's cache."""


def described(model: ModelConfig, *, fetch: bool = True) -> Described | None:
    """Reads the config.json of a model's weights; None if it has no weights, or if they are not on disk and
    may not be fetched.

    Raises ValueError in one line if it cannot be obtained or has impossible values.
    """
    if model.is_folder and model.path is None:
        raise ValueError(f"model=folder needs a folder: add model.path=<folder>; {FOLDER_WAYS_OUT}")
    if model.family in VISION or not (model.is_folder or model.weights == "pretrained"):
        return None
    remedy = FOLDER_WAYS_OUT if model.is_folder else WAYS_OUT
    if model.path is None:
        cached = _of_hub(str(model.pretrained), fetch)
        return None if cached is None else describe(cached, remedy=remedy)
    reason = weights_available(model)
    if reason is not None:
        raise ValueError(reason)
    try:
        found = describe(Path(model.path).expanduser() / CONFIG, remedy=remedy)
    except UnusableFileError as error:
        raise ValueError(f"model.path={model.path}: {error}") from None
    _check_fits(model, found)
    return found


def objective_of(model: ModelConfig) -> str:
    """The objective that `auto` stands for; raises the errors of `described`."""
    if model.objective != AUTO:
        return model.objective
    found = described(model)
    if found is not None and found.kind is not None:
        return found.kind
    return OBJECTIVE if model.family in VISION else FAMILIES[model.family].objectives[0]


def settled(model: ModelConfig) -> ModelConfig:
    """`model` with the shape of its weights, if these determine it; raises the errors of `described`.

    For `model=folder` the recipe's sequence length is limited to the model's positions.
    """
    found = described(model)
    if found is None:
        return model
    counted = None if model.path is None else _parameters(Path(model.path).expanduser())
    shaped = replace(model, **found.shape(), parameters=counted if model.weights == "pretrained" else None)
    if not model.is_folder:
        return shaped
    if found.context is None:
        shaped = replace(shaped, context=UNBOUNDED)
    length = min(model.recipe.sequence_length, shaped.context)
    return replace(
        shaped,
        name=_name(model, found),
        family=_family(found),
        objective=objective_of(model),
        recipe=replace(model.recipe, sequence_length=length),
    )


def model_in_words(model: ModelConfig) -> str:
    """Describes a settled model: `gpt_neox of 2 layers and 64 channels, 4 heads, ...`."""
    counted = "" if model.parameters is None else f", {model.parameters / 1e6:.3g}M parameters"
    positions = "" if model.context == UNBOUNDED else f", {model.context} positions"
    return (
        f"{model.family} of {model.num_layers} layers, {model.hidden_size} channels and {model.num_heads} "
        f"heads, vocabulary {model.vocab_size}{positions}{counted}"
    )


def _check_fits(model: ModelConfig, found: Described) -> None:
    """Raises ValueError if a model does not match its preset, or cannot be trained with the objective."""
    where = f"model.path={model.path}"
    if not model.is_folder and found.model_type not in (None, FAMILIES[model.family].model_type):
        raise ValueError(
            f"{where}: holds a {printable(str(found.model_type), 40)}, and model={model.name} is a "
            f"{model.family}; use model=folder model.path={model.path}"
        )
    named = printable(str(found.architecture), 60)
    if model.is_folder and found.kind is None:
        ends = ", ".join(ENDINGS)
        raise ValueError(
            f"{where}: its architecture is {named}, which is neither a causal nor a masked model nor a "
            f"classifier of text; use a folder whose architecture ends in one of {ends}"
        )
    if model.is_folder and found.model_type is None:
        raise ValueError(f"{where}: its {CONFIG} has no model_type; save it again with save_pretrained")
    if found.kind is not None and model.objective not in (AUTO, *OF_KIND[found.kind]):
        fitting = " or ".join(f"model.objective={each}" for each in OF_KIND[found.kind])
        raise ValueError(
            f"model.objective={model.objective}: the model in {model.path} is a {named}, which was made for "
            f"another; use {fitting}"
        )


def _family(found: Described) -> str:
    """This project's name of the family, or else transformers'."""
    known = (name for name, family in FAMILIES.items() if family.model_type == found.model_type)
    return next(known, printable(str(found.model_type), MOST_NAME))


def _name(model: ModelConfig, found: Described) -> str:
    """The name of runs of a model folder: the folder's name, unless the user has set one."""
    if model.name != FOLDER:
        return model.name
    called = re.sub(r"[^A-Za-z0-9._+-]+", "-", Path(str(model.path)).expanduser().resolve().name)
    called = called.strip("-._+")[:MOST_NAME]
    return _family(found) if not called or _NO_NAMES.fullmatch(called) else called


def _parameters(folder: Path) -> int | None:
    """The number of parameters in a folder's safetensors; None if it has other weights."""
    if (folder / WEIGHTS_FILE).is_file():
        return count_parameters(folder / WEIGHTS_FILE, remedy=WAYS_OUT)
    if not (folder / INDEX).is_file():
        return None
    files = read_json(folder / INDEX, remedy=WAYS_OUT, most=MOST_INDEX)["weight_map"].values()
    return sum(count_parameters(folder / name, remedy=WAYS_OUT) for name in sorted(set(files)))


def _of_hub(name: str, fetch: bool) -> Path | None:
    """The config.json of a name on the hub, from the cache or downloaded into it. Raises ValueError if the
    hub does not provide it."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import LocalEntryNotFoundError

    found = try_to_load_from_cache(name, CONFIG)
    if isinstance(found, str):
        return Path(found)
    if not fetch:
        return None
    try:
        return Path(hf_hub_download(name, CONFIG))
    except LocalEntryNotFoundError:
        raise ValueError(f"model.pretrained={name}: the hub cannot be reached; {WAYS_OUT}") from None
    except OSError:  # the hub's own errors among them
        raise ValueError(f"model.pretrained={name}: the hub does not give its {CONFIG}; {WAYS_OUT}") from None
