"""Checks of a Hugging Face folder from elsewhere before transformers reads it.

The folder's settings determine the model and its implementations. Settings that would download or run code,
build arbitrarily large models or fail inside transformers are refused in one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradwire.harness.files.hostile import files_in
from gradwire.harness.files.reading import MOST_TEXT, UnusableFileError, amount, printable
from gradwire.harness.files.structured import read_json

CONFIG, INDEX = "config.json", "model.safetensors.index.json"

MOST_INDEX = 8 * MOST_TEXT
"""The largest size of an index of weights in bytes; it has some 100 per tensor."""

ATTENTION = ("eager", "sdpa", "flex_attention")
"""Implementations that are part of transformers; it would download others from the hub."""

DTYPES = ("auto", "float64", "float32", "float16", "bfloat16")

BOUNDS: tuple[tuple[re.Pattern[str], int, int], ...] = (
    (re.compile(r"(n|num|\w+_num)_(\w+_)?layers?|(en|de)coder_layers"), 0, 1024),
    (re.compile(r"n_head|num_(\w+_)?heads"), 1, 1 << 14),
    (re.compile(r"hidden_size|n_embd|d_model|intermediate_size|n_inner|ffn_dim|embedding_size"), 1, 1 << 22),
    (re.compile(r"head_dim"), 1, 1 << 16),
    (re.compile(r"vocab_size|n_positions|n_ctx|max_position_embeddings"), 1, 1 << 24),
    (re.compile(r"num_(local_)?experts|n_routed_experts"), 0, 1024),
)
"""Bounds of a model's sizes by patterns of their keys: the smallest and the largest allowed value."""

WIDTHS = ("hidden_size", "n_embd", "d_model")
ROWS = ("vocab_size", "intermediate_size", "n_inner", "ffn_dim", "n_positions")
"""Keys of sizes that are numbers of rows of a matrix with the model's width; a model has at least one such
matrix for each."""

LEARNED_POSITIONS = ("bert", "roberta", "distilbert", "electra", "opt")
"""Models with a matrix of `max_position_embeddings` rows."""


def check_folder(folder: Path, *, remedy: str) -> None:
    """Raises UnusableFileError for a link or an index that leads out of a folder of weights or of a
    tokenizer, and for refused settings of a model."""
    num_bytes = sum(path.stat().st_size for path in files_in(folder, remedy=remedy) if _is_weights(path))
    if (folder / INDEX).is_file():
        _check_index(folder / INDEX, remedy)
    if (folder / CONFIG).is_file():
        settings = read_json(folder / CONFIG, remedy=remedy)
        check_settings(settings, folder / CONFIG, remedy=remedy)
        _check_size(settings, num_bytes, folder / CONFIG, remedy)


def check_settings(settings: Mapping[str, Any], path: Path, *, remedy: str) -> None:
    """Raises UnusableFileError for the first refused setting of a model, read from `path`."""
    for where, key, value in _all(settings, ""):
        reason = _refused(key, value)
        if reason is not None:
            shown = printable(repr(value), 60)
            raise UnusableFileError(path, f"has {printable(where, 80)}={shown}; {reason}", remedy)


def in_a_line(error: Exception) -> str:
    """A library's error in loading a folder, on one line."""
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    usual = isinstance(error, OSError | ValueError | RuntimeError)
    return first if usual else f"{type(error).__name__}: {first}"


def _refused(key: str, value: Any) -> str | None:
    """The reason why a setting is refused, with the allowed values; None if it is accepted."""
    if key in ("attn_implementation", "_attn_implementation", "experts_implementation"):
        names = list(value.values()) if isinstance(value, dict) else [value]
        allowed = ATTENTION if "attn" in key else ("eager", "batched_mm", "grouped_mm")
        fits = all(name is None or name in allowed for name in names)
        return None if fits else f"allowed are {', '.join(allowed)}, which transformers has itself"
    if key in ("dtype", "torch_dtype"):
        fits = value is None or (isinstance(value, str) and value.removeprefix("torch.") in DTYPES)
        return None if fits else f"allowed are {', '.join(DTYPES)}"
    if key == "quantization_config":
        return None if value is None else "quantized weights are not loaded; save them as floating point"
    for pattern, least, most in BOUNDS:
        if pattern.fullmatch(key) and not _all_between(value, least, most):
            return f"allowed are whole numbers from {least} to {most}"
    return None


def _all_between(value: Any, least: int, most: int) -> bool:
    """True if a size, or each in a list with one per layer, is within its bounds; null means the family's
    default."""
    sizes = value if isinstance(value, list) else [value]
    return all(size is None or (type(size) is int and least <= size <= most) for size in sizes)


def _all(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, Any]]:
    """(dotted key, key, value) of all settings, including those of a model's parts."""
    for key, value in settings.items():
        yield f"{prefix}{key}", key, value
        if isinstance(value, Mapping):
            yield from _all(value, f"{prefix}{key}.")


def _check_size(settings: Mapping[str, Any], num_bytes: int, path: Path, remedy: str) -> None:
    """Refuses settings with a matrix larger than the weights on disk, before it is allocated."""
    of_text = settings.get("text_config")
    found = {**settings, **(of_text if isinstance(of_text, Mapping) else {})}
    width = next((found[key] for key in WIDTHS if isinstance(found.get(key), int)), 1)
    learned = ("max_position_embeddings",) if found.get("model_type") in LEARNED_POSITIONS else ()
    own = found.get("embedding_size")
    of_tokens = own if isinstance(own, int) else width
    for key in (*ROWS, *learned):
        columns = width if key in ("intermediate_size", "n_inner", "ffn_dim") else of_tokens
        rows = found.get(key)
        if isinstance(rows, int) and num_bytes and rows * columns > num_bytes:
            there = amount(num_bytes)
            problem = f"has {key}={rows}: {rows} × {columns} numbers, more than the weights' {there} hold"
            raise UnusableFileError(path, problem, remedy)


def _check_index(path: Path, remedy: str) -> None:
    """Refuses an index of weights that names files outside the folder."""
    files = read_json(path, remedy=remedy, most=MOST_INDEX).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise UnusableFileError(path, "has no weight_map", remedy)
    for name in set(map(str, files.values())):
        if Path(name).name != name or name.startswith("."):
            shown = printable(name, 80)
            raise UnusableFileError(path, f"names {shown}, which is not a file in its folder", remedy)
        if not (path.parent / name).is_file():
            raise UnusableFileError(path, f"names {printable(name, 80)}, which is not there", remedy)


def _is_weights(path: Path) -> bool:
    return path.suffix in (".safetensors", ".bin")
