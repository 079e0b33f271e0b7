"""Which text a run trains on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..models.config import ModelConfig

NAMES = ("auto", "embedded", "text")


@dataclass
class DatasetConfig:
    """Where the text comes from and how it is cut."""

    name: str = "auto"
    """`embedded` (text that comes with Python), `text` (your files), or `auto`: `text` if `path` is
    set, else `embedded` at size=tiny."""
    path: str | None = None
    """A file or folder: .txt .jsonl .json .csv .tsv .parquet, plain or as .gz .bz2 .xz."""
    text_field: str = "text"
    """The field or column that holds the text, where records have fields."""
    sequence_length: int | None = None
    """Tokens per sequence; null takes `model.recipe.sequence_length`."""
    held_out_fraction: float = 0.05
    """Share of the documents kept for evaluation, when the files are not split already."""
    max_held_out_sequences: int | None = None
    """Evaluate on no more than this many sequences; null takes all."""
    mask_probability: float = 0.15
    """Share of the tokens that masked language modelling hides (BERT §3.1)."""


def resolve_dataset(dataset: DatasetConfig, model: ModelConfig, size_name: str) -> DatasetConfig:
    """`dataset` with `auto` and null replaced by what they stand for, and checked.

    Raises ValueError in one line.
    """
    resolved = replace(
        dataset,
        name=_resolve_name(dataset, model, size_name),
        sequence_length=dataset.sequence_length or model.recipe.sequence_length,
    )
    _check(resolved, model)
    return resolved


def _resolve_name(dataset: DatasetConfig, model: ModelConfig, size_name: str) -> str:
    if dataset.name not in NAMES:
        raise ValueError(f"dataset.name={dataset.name}: must be one of {', '.join(NAMES)}")
    if dataset.name == "text" and dataset.path is None:
        raise ValueError("dataset.path: dataset=text needs a file or folder of text; set dataset.path=")
    if dataset.name == "embedded" and dataset.path is not None:
        raise ValueError(f"dataset.path={dataset.path} has no effect with dataset=embedded; use dataset=text")
    if dataset.name != "auto":
        return dataset.name
    if dataset.path is not None:
        return "text"
    if size_name == "tiny":
        return "embedded"
    raise ValueError(
        f"dataset=auto: model={model.name} at size={size_name} trains on {model.paper_dataset}, "
        "which is not fetched for you; use dataset.path=<file or folder>, dataset=embedded or size=tiny"
    )


def _check(dataset: DatasetConfig, model: ModelConfig) -> None:
    length, most = dataset.sequence_length, dataset.max_held_out_sequences
    if length is None or not 2 <= length <= model.context:
        limits = f"between 2 and model.context={model.context}"
        raise ValueError(f"dataset.sequence_length={length}: must be {limits}")
    if not 0 < dataset.held_out_fraction < 1:
        raise ValueError(f"dataset.held_out_fraction={dataset.held_out_fraction}: must be between 0 and 1")
    if not 0 < dataset.mask_probability < 1:
        raise ValueError(f"dataset.mask_probability={dataset.mask_probability}: must be between 0 and 1")
    if most is not None and most < 1:
        raise ValueError(f"dataset.max_held_out_sequences={most}: must be at least 1 or null")
