"""The settings that say which text a run trains on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradwire.codecs.fields import at_least, between, check_fields, one_of, plain_name
from gradwire.codecs.wording import shortened
from gradwire.harness.data.published import published_settings
from gradwire.harness.models.settings import ModelConfig

UNUSED_BY_EMBEDDED = (
    "hub",
    "configuration",
    "revision",
    "files",
    "train_split",
    "held_out_split",
    "text_field",
)
"""Fields that say where the text lies in a repository or in files. The embedded text has none of them."""


@dataclass(frozen=True)
class DatasetConfig:
    """Where the text comes from and how it is cut."""

    name: str = plain_name("auto")
    """A published data set (one with `hub`), `embedded` (text that comes with Python), `text` (your
    files), or `auto`: `text` if `path` is set, else `embedded` at size=tiny, else the data set the
    paper trains the model on."""
    path: str | None = None
    """A file or folder: .txt .jsonl .json .csv .tsv .parquet, plain or as .gz .bz2 .xz .zst. With a published
    data set, these are its own files, and nothing is fetched."""
    hub: str | None = None
    """Hugging Face name of a published data set."""
    configuration: str | None = None
    """The repository's configuration; null if it has only one."""
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
    """How `messages` become text: `plain` ("role: content"), `template` (the tokenizer's own), or `auto`: the
    tokenizer's template if it has one. Chat models have one, base models do not."""
    sequence_length: int | None = at_least(2, None, 1 << 24)
    """Tokens per sequence; null takes `model.recipe.sequence_length`."""
    max_train_tokens: int | None = at_least(1, None, 10**15)
    """Train on at most this many tokens, the first ones; null takes all."""
    held_out_fraction: float = between(0, 1, 0.05, low_included=False, high_included=False)
    """Share of the documents kept for evaluation, when the data is not split already."""
    max_held_out_sequences: int | None = at_least(1, None, 10**12)
    """Evaluate on at most this many sequences; null takes all."""
    mask_probability: float = between(0, 1, 0.15, low_included=False, high_included=False)
    """Share of the tokens that masked language modelling hides (BERT §3.1)."""


def resolve_dataset(
    dataset: DatasetConfig, model: ModelConfig, size_name: str, folder: Path
) -> DatasetConfig:
    """Returns `dataset`, checked, with `auto` and null replaced by what they stand for.

    `folder` holds the settings of the published data sets, one YAML each. If `path` replaces a repository,
    the result no longer names the repository. Raises ValueError in one line.
    """
    name = _resolve_name(dataset, model, size_name)
    if dataset.name == "auto" and name not in ("embedded", "text"):
        dataset = _with_defaults(dataset, published_settings(name, folder, model.name))
    _check_source(replace(dataset, name=name))
    if dataset.path is not None:
        unused = ("hub", "configuration", "files")
        dataset = replace(dataset, **{field: _defaults()[field] for field in unused})
    length = dataset.sequence_length or model.recipe.sequence_length
    resolved = replace(dataset, name=name, sequence_length=length)
    _check(resolved, model)
    return resolved


def at_most_evaluated(dataset: DatasetConfig, most: int | None) -> DatasetConfig:
    """Returns `dataset` with `max_held_out_sequences` lowered to `most`; None lowers nothing."""
    limits = [limit for limit in (dataset.max_held_out_sequences, most) if limit is not None]
    return replace(dataset, max_held_out_sequences=min(limits, default=None))


def _resolve_name(dataset: DatasetConfig, model: ModelConfig, size_name: str) -> str:
    if dataset.name != "auto":
        return dataset.name
    if dataset.path is not None:
        return "text"
    return "embedded" if size_name == "tiny" else model.paper_dataset


def _defaults() -> dict[str, Any]:
    return dataclasses.asdict(DatasetConfig())


def _with_defaults(dataset: DatasetConfig, settings: dict[str, Any]) -> DatasetConfig:
    """Returns `settings` for the fields that `dataset` leaves at their defaults."""
    defaults = _defaults()
    untouched = {key for key, default in defaults.items() if getattr(dataset, key) == default}
    return replace(dataset, **{key: value for key, value in settings.items() if key in untouched})


def _check_source(dataset: DatasetConfig) -> None:
    """Refuses settings that take the text from two places."""
    if dataset.name in ("embedded", "text") and dataset.hub is not None:
        raise ValueError(
            f"dataset.hub={dataset.hub} has no effect with dataset={dataset.name}; use "
            "dataset=<a published data set> dataset.hub="
        )
    _check_embedded(dataset)
    if dataset.name == "embedded" and dataset.path is not None:
        raise ValueError(f"dataset.path={dataset.path} has no effect with dataset=embedded; use dataset=text")
    if dataset.name == "text" and dataset.path is None:
        raise ValueError("dataset.path: dataset=text needs a file or folder of text; set dataset.path=")
    if dataset.name not in ("embedded", "text") and dataset.path is None and dataset.hub is None:
        raise ValueError(
            f"dataset.name={dataset.name}: must be one of auto, embedded, text, or have dataset.hub="
        )
    if dataset.path is not None and dataset.revision is not None:
        raise ValueError(
            f"dataset.revision={dataset.revision} has no effect with dataset.path={dataset.path}; leave "
            "one of them out"
        )


def _check_embedded(dataset: DatasetConfig) -> None:
    """Refuses settings that the embedded text does not have."""
    for name in UNUSED_BY_EMBEDDED if dataset.name == "embedded" else ():
        value, usual = getattr(dataset, name), _defaults()[name]
        if value != usual:
            raise ValueError(
                f"dataset.{name}={shortened(value)} has no effect with the embedded text; leave it out, or "
                "choose other text by dataset.path= or dataset=<a published data set>"
            )


def _check(dataset: DatasetConfig, model: ModelConfig) -> None:
    check_fields(DatasetConfig, vars(dataset), "dataset")
    length = dataset.sequence_length
    if length is None or not 2 <= length <= model.context:
        limits = f"between 2 and model.context={model.context}"
        raise ValueError(f"dataset.sequence_length={length}: must be {limits}")
    if dataset.max_train_tokens is not None and dataset.max_train_tokens < length:
        limits = f"at least one sequence ({length} tokens) or null"
        raise ValueError(f"dataset.max_train_tokens={dataset.max_train_tokens}: must be {limits}")
