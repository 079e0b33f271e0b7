"""The settings of a run's training data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from gradwire.codecs.fields import at_least, between, check_fields, one_of, plain_name
from gradwire.harness.data.examples import Kind
from gradwire.harness.data.glue import TASKS
from gradwire.harness.models.settings import ModelConfig, check_length
from gradwire.harness.runtime.effects import ReadWith, check_read_settings, keys_of

WAYS_OUT = "use dataset.path=<its files, or your own text> or dataset=embedded"


def published_settings(name: str, folder: Path, model_name: str) -> dict[str, Any]:
    """Returns the values of `<folder>/<name>.yaml`, as `dataset=<name>` composes them.

    Raises ValueError, in one line, if there is no such file for the data set that the paper trains
    `model_name` on.
    """
    file = folder / f"{name}.yaml"
    if not file.is_file():
        raise ValueError(
            f"dataset=auto: model={model_name} trains on {name}, which has no conf/dataset/{name}.yaml; "
            f"{WAYS_OUT}"
        )
    settings = OmegaConf.to_container(OmegaConf.load(file))
    assert isinstance(settings, dict)
    return {str(key): value for key, value in settings.items() if key != "defaults"}


EMBEDDED_SIZE = 16
"""Pixels per side of the embedded images."""

READ_WITH = (
    ReadWith(
        ("dataset.hub",),
        ("dataset",),
        lambda name: name not in ("embedded", "text"),
        "leave it out, or choose a published data set by dataset=",
    ),
    ReadWith(
        keys_of(
            "dataset",
            *("configuration", "revision", "files", "train_split", "held_out_split", "text_field", "loss_on"),
        ),
        ("dataset",),
        lambda name: name != "embedded",
        "leave it out, or choose other text by dataset.path= or dataset=<a published data set>",
    ),
    ReadWith(("dataset.path",), ("dataset",), lambda name: name != "embedded", "use dataset=text"),
    ReadWith(("dataset.revision",), ("dataset.path",), lambda path: path is None, "leave one of them out"),
    ReadWith(
        keys_of("dataset", "image_size", "image_field", "augment"),
        ("model.objective",),
        lambda objective: objective == "image_classification",
        "leave it out, or use a model for images, e.g. model=resnet50",
    ),
    ReadWith(
        keys_of("dataset", "sequence_length", "held_out_fraction"),
        ("model.objective",),
        lambda objective: objective != "image_classification",
        "leave it out, or use a model for text, e.g. model=gpt2",
    ),
    ReadWith(
        keys_of("dataset", "streaming", "text_field", "chat_format", "loss_on"),
        ("model.objective",),
        lambda objective: objective in ("causal", "masked"),
        "leave it out, or use model.objective=causal or masked",
    ),
    ReadWith(
        ("dataset.mask_probability",),
        ("model.objective",),
        lambda objective: objective == "masked",
        "leave it out, or use a model of masked text, e.g. model=bert_large",
    ),
)
"""Keys with what reads them, once the data set's name and kind are known."""

FITS = {
    "images": ("images", "model.objective=image_classification", "dataset=cifar10"),
    "documents": ("text", "model.objective=causal or masked", "dataset=text"),
    "questions": ("questions", "model.objective=choice", "dataset=mmlu"),
    "sentences": ("labelled sentences", "model.objective=classification", "dataset=glue"),
}
"""The name of each kind of data, the objective for it, and a data set of it."""


@dataclass(frozen=True)
class DatasetConfig:
    """The source of the data, and its form in training."""

    name: str = plain_name("auto")
    """A published data set (one with `hub`), `embedded` (text that comes with Python), `text` (your
    files), or `auto`: `text` if `path` is set, else `embedded` at size=tiny, else the data set the
    paper trains the model on."""
    path: str | None = None
    """A file or folder: .txt .jsonl .json .csv .tsv .parquet, plain or as .gz .bz2 .xz .zst. With a published
    data set, these are its own files, and nothing is fetched."""
    hub: str | None = None
    """Hugging Face name of a published data set."""
    kind: str = one_of("documents", "questions", "sentences", "images")
    """Kind of data: `documents` (text, packed into rows), `questions` (multiple choice, in MMLU's shape),
    `sentences` (with labels, in GLUE's shape), all of which can be made of the embedded text, or `images`
    (with labels)."""
    configuration: str | None = None
    """The repository's configuration; null if it has only one. Of GLUE it is the task, also of its files."""
    revision: str | None = None
    """Commit, tag or branch of the repository; null is the state of main when it is first prepared."""
    files: dict[str, str] = field(default_factory=dict)
    """Split to file pattern, for repositories whose card does not say; if empty, the card decides."""
    train_split: str = "train"
    """The repository's split to train on. The file names in `path` are searched for it, too."""
    held_out_split: str | None = None
    """The repository's split to evaluate on; null: `held_out_fraction` of the training documents."""
    streaming: bool = False
    """Read only as much as needed, from the start, and keep no copy of the repository. Each document is then
    held out by itself: if its sha256 lies in the last `held_out_fraction` of the range."""
    text_field: str = "text"
    """The field or column that holds the text, where records have fields."""
    chat_format: str = one_of("auto", "plain", "template")
    """The way `messages` become text: `plain` ("role: content"), `template` (the tokenizer's own), or `auto`:
    the tokenizer's template if it has one. Chat models have one, base models do not."""
    loss_on: str = one_of("all", "assistant")
    """The tokens of `messages` that the loss is on: `all`, or only those of the `assistant`."""
    sequence_length: int | None = at_least(2, None, 1 << 24)
    """Tokens per sequence; null takes `model.recipe.sequence_length`. Longer questions lose their beginning,
    longer sentences their end; the record counts them."""
    max_train_tokens: int | None = at_least(1, None, 10**15)
    """Train on at most this many tokens, the first ones; null takes all."""
    held_out_fraction: float = between(0, 1, 0.05, low_included=False, high_included=False)
    """Share of the documents kept for evaluation, when the data is not split already."""
    max_held_out_sequences: int | None = at_least(1, None, 10**12)
    """Evaluate on at most this many sequences; null takes all. Of examples, one in every so many is taken."""
    mask_probability: float = between(0, 1, 0.15, low_included=False, high_included=False)
    """Share of the tokens that masked language modelling hides (BERT §3.1)."""
    image_size: int | None = at_least(8, None, 1024)
    """Pixels of an image's side; images of another size are scaled. The embedded ones have 16."""
    image_field: str = "image"
    """The field of a repository's records that holds the images."""
    augment: str = one_of("none", "crop_flip")
    """Change of images in training: `crop_flip` moves them by up to an eighth of their side, over a border of
    the mean color, and mirrors one in two."""


def resolve_dataset(
    dataset: DatasetConfig, model: ModelConfig, size_name: str, folder: Path, kind: Kind = "documents"
) -> DatasetConfig:
    """Returns `dataset`, checked, with `auto` and null resolved.

    `folder` holds the settings of the published data sets, one YAML each; `kind` is the kind of data that the
    model's objective needs. If `path` replaces a repository, the result no longer names the repository.
    Raises ValueError in one line.
    """
    name = _resolve_name(dataset, model, size_name, kind)
    if dataset.name == "auto" and name not in ("embedded", "text"):
        dataset = _with_defaults(dataset, published_settings(name, folder, model.name))
    if name == "embedded":
        dataset = replace(dataset, kind=kind)
    _check_given(replace(dataset, name=name), model, kind)
    if dataset.path is not None:
        # The configuration of labelled sentences is their task, which determines how files are read.
        unused = ("hub", "files", *(() if kind == "sentences" else ("configuration",)))
        dataset = replace(dataset, **{field: _defaults()[field] for field in unused})
    if kind == "images":
        size = dataset.image_size or (EMBEDDED_SIZE if name == "embedded" else None)
        resolved = replace(dataset, name=name, image_size=size)
        _check_images(resolved)
        return resolved
    length = dataset.sequence_length or model.recipe.sequence_length
    resolved = replace(dataset, name=name, sequence_length=length)
    _check(resolved, model)
    return resolved


def at_most_evaluated(dataset: DatasetConfig, most: int | None) -> DatasetConfig:
    """Returns `dataset` with `max_held_out_sequences` lowered to `most`; None lowers nothing."""
    limits = [limit for limit in (dataset.max_held_out_sequences, most) if limit is not None]
    return replace(dataset, max_held_out_sequences=min(limits, default=None))


def _resolve_name(dataset: DatasetConfig, model: ModelConfig, size_name: str, kind: Kind) -> str:
    if dataset.name != "auto":
        return dataset.name
    if dataset.path is not None:
        return "text" if kind == "documents" else model.paper_dataset
    return "embedded" if size_name == "tiny" else model.paper_dataset


def _defaults() -> dict[str, Any]:
    return dataclasses.asdict(DatasetConfig())


def _with_defaults(dataset: DatasetConfig, settings: dict[str, Any]) -> DatasetConfig:
    """Returns `settings` for the fields that `dataset` leaves at their defaults."""
    defaults = _defaults()
    untouched = {key for key, default in defaults.items() if getattr(dataset, key) == default}
    return replace(dataset, **{key: value for key, value in settings.items() if key in untouched})


def _check_given(dataset: DatasetConfig, model: ModelConfig, kind: Kind) -> None:
    """Refuses data that the objective cannot train on, settings that nothing reads, and data from nowhere."""
    wanted, _, other = FITS[kind]
    if dataset.kind != kind:
        held, objective, _ = FITS[dataset.kind]
        raise ValueError(
            f"dataset={dataset.name} holds {held}, and model.objective={model.objective} trains on {wanted}; "
            f"use {objective}, or data such as {other}"
        )
    check_read_settings(READ_WITH, {"dataset": dataset, "model": model})
    name = dataset.name
    if name == "text" and dataset.path is None:
        raise ValueError("dataset.path: dataset=text needs a file or folder of text; set dataset.path=")
    if name not in ("embedded", "text") and dataset.path is None and dataset.hub is None:
        raise ValueError(f"dataset.name={name}: must be one of auto, embedded, text, or have dataset.hub=")
    if kind == "documents":
        _check_chats(dataset, model)
    elif name != "embedded" and dataset.held_out_split is None:
        raise ValueError(
            f"dataset.held_out_split=null: {wanted} are split already; set it to the split to evaluate on"
        )
    elif kind == "sentences" and name != "embedded" and dataset.configuration not in TASKS:
        raise ValueError(
            f"dataset.configuration={dataset.configuration}: must be one of GLUE's tasks {', '.join(TASKS)}"
        )


def _check_chats(dataset: DatasetConfig, model: ModelConfig) -> None:
    if dataset.loss_on == "all":
        return
    if model.objective != "causal":
        raise ValueError(
            f"dataset.loss_on={dataset.loss_on} cannot be used with model.objective={model.objective}, which "
            "hides tokens anywhere; use dataset.loss_on=all"
        )
    if dataset.hub is not None and dataset.text_field != "messages":
        raise ValueError(
            f"dataset.loss_on={dataset.loss_on}: dataset={dataset.name} holds text, not chats; use "
            "dataset.loss_on=all or dataset=ultrachat"
        )


def _check_images(dataset: DatasetConfig) -> None:
    check_fields(DatasetConfig, vars(dataset), "dataset")
    if dataset.image_size is None:
        raise ValueError(
            f"dataset.image_size=null: the images of dataset={dataset.name} have no size of their own; set "
            "it to the pixels of a side, e.g. dataset.image_size=32"
        )


def _check(dataset: DatasetConfig, model: ModelConfig) -> None:
    check_fields(DatasetConfig, vars(dataset), "dataset")
    length = dataset.sequence_length
    check_length("dataset.sequence_length", length, model.context, model.path)
    assert length is not None
    if dataset.max_train_tokens is not None and dataset.max_train_tokens < length:
        limits = f"at least one sequence ({length} tokens) or null"
        raise ValueError(f"dataset.max_train_tokens={dataset.max_train_tokens}: must be {limits}")
