"""What makes two cells do the same computation: an id from the settings that a rank's work follows from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

NOT_OF_THE_MODEL = ("name", "recipe", "pretrained", "tokenizer", "paper_dataset", "weights", "path")
"""Fields of `model` that say what its weights are and how it is trained, not what a pass computes."""

OF_THE_BATCHES = ("kind", "sequence_length", "image_size")
"""Fields of `dataset` that the shapes of a micro-batch follow from."""

OF_THE_TRAINING = ("micro_batch", "accumulation", "optimizer", "precision")

NOT_OF_THE_PARALLELISM = ("bucket_cap_mb", "weights", "weight_bits", "weight_group")
"""Fields of `parallel` that say in which pieces gradients are sent, and how weights are encoded."""

BY_REPLICAS = ("ddp",)
"""Parallelisms under which the work of a rank does not depend on the number of workers."""

PACKED = "documents"
"""The kind of data whose micro-batches are all full; others' lengths follow from the data."""

DIGITS = 12


def computation_id(settings: Mapping[str, Any]) -> str:
    """12 hexadecimal digits that two runs share if their ranks compute the same: the same model and shapes,
    micro-batches, optimizer, precision and device, spread over the workers in the same way.

    Codec, topology, network, overlap, seed, learning rate and length do not count. `settings` are plain
    values, as in a run's `config.yaml`; groups that it lacks count as empty.
    """
    text = json.dumps(computation_of(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def computation_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that `computation_id` is made from, by group."""
    model, dataset, train, parallel, cluster = (
        dict(settings.get(group) or {}) for group in ("model", "dataset", "train", "parallel", "cluster")
    )
    shape = {key: value for key, value in model.items() if key not in NOT_OF_THE_MODEL}
    if model.get("path") is not None:  # a folder may hold another shape than the preset's
        shape["path"] = str(model["path"])
    batches = {key: dataset.get(key) for key in OF_THE_BATCHES}
    if dataset.get("kind") != PACKED:
        batches["name"] = dataset.get("name")
    passes = {key: train.get(key) for key in OF_THE_TRAINING}
    passes["clips"] = train.get("clip_norm") is not None
    spread = {key: value for key, value in parallel.items() if key not in NOT_OF_THE_PARALLELISM}
    if parallel.get("name") not in BY_REPLICAS:
        spread["workers"] = cluster.get("workers")
    return {
        "model": shape,
        "dataset": batches,
        "train": passes,
        "parallel": spread,
        "device": cluster.get("device"),
    }
