"""Lower bounds on a run's memory and disk space, computed from its shape, to refuse runs that cannot fit."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from gradwire.harness.files.writing import check_room
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.models.vision import VISION, stage_widths
from gradwire.harness.models.vision import num_parameters as convolutions
from gradwire.harness.parallel.settings import ShardedConfig
from gradwire.harness.record.directory import is_done
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.trainer.settings import RunConfig

PARAMETER_BYTES = 16
"""Bytes per parameter: float32 parameter, gradient and AdamW's two means."""

MOMENT_BYTES, MAIN_BYTES, GRADIENT_BYTES = 8, 4, 4
"""Bytes per parameter that sharded training keeps in float32: AdamW's two means, main weight, gradient."""

PROCESS_BYTES = 150 << 20
"""Bytes of a worker process with PyTorch loaded."""

GIB = 1 << 30


def check_memory(run: RunConfig) -> None:
    """Refuse, in one line, a training run that needs more memory than this machine has. Raises ConfigError.

    The estimate is a lower bound: parameters, gradients and optimizer state of every replica here, and the
    activations that one forward pass keeps for the backward pass.
    """
    cluster = run.cluster
    on_gpu = cluster.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        return
    replicas = _replicas(run)
    state = _parameter_bytes(run) * num_parameters(run.model)
    field, activations = max(
        (f"train.micro_batch={run.train.micro_batch}", _training_pass_bytes(run)),
        (f"eval.micro_batch={run.eval.micro_batch}", _evaluation_pass_bytes(run)),
        key=lambda each: each[1],
    )
    processes = 0 if cluster.name == "virtual" else _workers_here(run) * PROCESS_BYTES
    needed = replicas * (state + activations) + (0 if on_gpu else processes)
    there = _gpu_bytes() if on_gpu else psutil.virtual_memory().total
    if needed <= there:
        return
    if state > activations:
        what = f"model={run.model.name} with {num_parameters(run.model):.3g} parameters"
        fix = "use size=tiny, a smaller model" + ("" if replicas == 1 else " or fewer cluster.workers")
    else:
        rows = f"{run.dataset.sequence_length} tokens" if run.dataset.sequence_length else "images"
        what = f"{field} of {rows}"
        fix = f"choose a smaller {field.partition('=')[0]}"
    if processes > replicas * (state + activations):
        what, fix = f"cluster.workers={cluster.workers}", "use fewer, or cluster=virtual"
    copies = "" if replicas == 1 else f" in {replicas} workers"
    where = "GPU" if on_gpu else "machine"
    raise ConfigError(
        f"{what}: training{copies} takes at least {needed / GIB:.3g} GiB, and this {where} has "
        f"{there / GIB:.3g}; {fix}"
    )


def _replicas(run: RunConfig) -> int:
    """The number of workers that share a memory: this machine's, or a GPU's."""
    cluster = run.cluster
    if cluster.name == "virtual":
        return 1
    if cluster.device != "cuda":
        return _workers_here(run)
    return math.ceil(_workers_here(run) / torch.cuda.device_count()) if cluster.share_device else 1


def _parameter_bytes(run: RunConfig) -> float:
    """Bytes per parameter in each process: the weight, its gradient, and the optimizer's state."""
    if not isinstance(run.parallel, ShardedConfig):
        return PARAMETER_BYTES
    shards = MOMENT_BYTES + (MAIN_BYTES if run.parallel.main == "algorithm2" else 0)
    own = shards if run.cluster.name == "virtual" else shards / run.cluster.size
    return (4 if run.parallel.model_dtype == "float32" else 2) + GRADIENT_BYTES + own


def check_bytes(field: str, value: object, needed: float) -> None:
    """Refuse a setting that makes a task need more than this machine's memory. Raises ValueError."""
    there = psutil.virtual_memory().total
    if needed > there:
        raise ValueError(
            f"{field}={value}: takes at least {needed / GIB:.3g} GiB, and this machine has "
            f"{there / GIB:.3g}; choose less"
        )


def num_parameters(model: ModelConfig) -> int:
    """A lower bound on the parameters of a model of this shape: attention, feed-forward matrices, embeddings;
    for images its convolutions; for pretrained weights the contents of their files."""
    if model.family in VISION:
        return convolutions(model)
    if model.parameters is not None:
        return model.parameters
    head = model.head_dim or model.hidden_size // model.num_heads
    attention = 2 * model.hidden_size * head * (model.num_heads + model.num_kv_heads)
    matrices = 3 if model.family in ("llama", "gemma") else 2
    layer = attention + matrices * model.hidden_size * model.intermediate_size
    return int(model.num_layers * layer + _words(model) * model.hidden_size)


def _training_pass_bytes(run: RunConfig) -> int:
    """A part of the activations that each layer keeps for each token, and the logits; for images those of
    convolutions."""
    model, width = run.model, 2 if run.train.precision == "bf16" else 4
    if model.family in VISION:
        return int(run.train.micro_batch * width * _pixels_kept(run))
    layer = 3 * model.hidden_size + model.intermediate_size
    tokens = run.train.micro_batch * _sequence_length(run)
    return int(tokens * width * (model.num_layers * layer + _words(model)))


def _evaluation_pass_bytes(run: RunConfig) -> int:
    """The hidden state and the logits of each token; for images the pixels."""
    if run.model.family in VISION:
        return run.eval.micro_batch * 4 * 3 * (run.dataset.image_size or 1) ** 2
    tokens = run.eval.micro_batch * _sequence_length(run)
    return int(tokens * 2 * (run.model.hidden_size + _words(run.model)))


def _pixels_kept(run: RunConfig) -> int:
    """Outputs of the 3×3 convolutions for an image, whose side in the first stage is a quarter of the
    image's."""
    side, total = max(1, (run.dataset.image_size or 1) // 4), 0
    for depth, width in zip(run.model.depths, stage_widths(run.model), strict=True):
        total += depth * width * side**2
        side = max(1, side // 2)
    return total


def _sequence_length(run: RunConfig) -> int:
    return run.dataset.sequence_length or run.model.recipe.sequence_length


def _words(model: ModelConfig) -> int:
    """A lower bound on the entries of the vocabulary: a tokenizer trained on little text needs few."""
    decided = model.weights == "pretrained" or model.is_folder
    return int(model.vocab_size if decided else min(model.vocab_size, 1 << 10))


def _workers_here(run: RunConfig) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", run.cluster.size))


def _gpu_bytes() -> int:
    return int(torch.cuda.get_device_properties(0).total_memory)


FLOAT = 4
"""Bytes of a float32."""

ROW_BYTES = 1500
"""Bytes of a step in `steps.jsonl`, its copy in checkpoints included."""

MESSAGE_BYTES = 60
"""Bytes of a message in a trace."""

PLOTS_BYTES = 2e6

MOST_NAMED = 3
"""The largest number of keys that a refusal names."""


@dataclass(frozen=True)
class DiskItem:
    """A file of a run: its smallest and largest size in bytes, and the setting that reduces it."""

    least: float
    most: float
    lower: str
    stays: bool = True
    """True if it remains when the run is done."""


def items(run: RunConfig) -> list[DiskItem]:
    """The files of a run at the time when they take most space on the disk.

    The number of parameters is a lower bound, as for memory. A new checkpoint is written before the oldest is
    removed, so one more exists than is kept.
    """
    train, measure, size = run.train, run.measure, run.cluster.size
    values = num_parameters(run.model)
    half = isinstance(run.parallel, ShardedConfig) and run.parallel.model_dtype == "bfloat16"
    state = values * (2 if half else FLOAT) + values * FLOAT * (1 if train.optimizer == "sgd" else 2)
    residuals = size * values * FLOAT if run.codec.get("ef") else 0
    gradients = len(measure.save_gradients_at) * size * values * FLOAT
    weights = len(measure.save_weights_at) * values * FLOAT
    fewest, most = _checkpoints(run)
    steps = train.steps or 0
    return [
        DiskItem(
            fewest * state,
            most * (state + residuals),
            "train.keep_checkpoints=1"
            if train.keep_checkpoints > 1 and fewest
            else "train.checkpoint_every=null",
            stays=False,
        ),
        _weights(run, values),
        DiskItem(gradients, gradients, "fewer steps in measure.save_gradients_at"),
        DiskItem(weights, weights, "fewer steps in measure.save_weights_at"),
        DiskItem(0, _trace_bytes(run, values, steps), "measure.trace=false"),
        DiskItem(0, steps * ROW_BYTES + PLOTS_BYTES * run.plots, "plots=false"),
    ]


def check_disk(run: RunConfig, directory: Path) -> str | None:
    """Refuses a run that does not fit on the disk of its `directory`; returns a warning if it may not fit, or
    None. Raises ConfigError.

    Files of an earlier attempt in the directory count as free space, because the same run replaces them.
    """
    if run.resume != "never" and is_done(directory):
        return None
    found, there = items(run), _bytes_in(directory)
    least, most = (max(0.0, sum(sizes) - there) for sizes in zip(*_sizes(found), strict=True))
    _check_scratch(run)
    try:
        return check_room(directory, "the run", least, most, _remedy(found, "hydra.run.dir="))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_disk_of_sweep(runs: Sequence[tuple[RunConfig, Path]]) -> str | None:
    """The warning of `check_disk` for the remaining runs of a sweep, which run one at a time: the sum of all
    files that remain, and the checkpoints of the run with the largest ones."""
    waiting = [(items(run), directory) for run, directory in runs if not is_done(directory)]
    if not waiting:
        return None
    stay = [item for found, _ in waiting for item in found if item.stays]
    pass_by = [item for found, _ in waiting for item in found if not item.stays]
    there = sum(_bytes_in(directory) for _, directory in waiting)
    least = sum(item.least for item in stay) + max((item.least for item in pass_by), default=0.0)
    most = sum(item.most for item in stay) + max((item.most for item in pass_by), default=0.0)
    what = f"the sweep with {len(waiting)} runs to go"
    remedy = _remedy([*stay, *pass_by], "hydra.sweep.dir=")
    try:
        return check_room(waiting[0][1], what, max(0.0, least - there), max(0.0, most - there), remedy)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _sizes(found: Sequence[DiskItem]) -> list[tuple[float, float]]:
    return [(item.least, item.most) for item in found]


def _checkpoints(run: RunConfig) -> tuple[int, int]:
    """The fewest and the most checkpoints that lie on the disk at once."""
    train = run.train
    if train.checkpoint_every is None:
        return 0, 0
    most = train.keep_checkpoints + 1
    if train.steps is None:
        return 0, most
    written = (train.steps - 1) // train.checkpoint_every
    return min(written, most), min(written, most) or 1


def _weights(run: RunConfig, values: int) -> DiskItem:
    """The final weights, which are written while the checkpoints still exist."""
    size = values * FLOAT if run.train.save_checkpoint else 0
    half = isinstance(run.parallel, ShardedConfig) and run.parallel.model_dtype == "bfloat16"
    return DiskItem(size / 2 if half else size, size, "train.save_checkpoint=false")


def _trace_bytes(run: RunConfig, values: int, steps: int) -> float:
    """An estimate of the bytes of all ranks' traces, some messages for each bucket and pair of ranks, up to
    the limit."""
    if not run.measure.trace or not run.measure.spans:
        return 0.0
    buckets = 1 + values * FLOAT // 25_000_000
    expected = steps * run.cluster.size**2 * buckets * MESSAGE_BYTES / run.measure.trace_every
    return min(1e6 * run.measure.trace_mb, expected)


def _check_scratch(run: RunConfig) -> None:
    """Refuse gradients stored on a disk that is too small. Raises ConfigError."""
    if run.cluster.name != "virtual" or run.cluster.gradients != "disk":
        return
    needed = run.cluster.size * num_parameters(run.model) * FLOAT
    remedy = "use cluster.gradients=memory, fewer cluster.workers, or TMPDIR=<folder on another disk>"
    try:
        check_room(Path(tempfile.gettempdir()), "cluster.gradients=disk", needed, 0.0, remedy)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _remedy(found: Sequence[DiskItem], elsewhere: str) -> str:
    """The settings that save most space, or another disk."""
    sizes: dict[str, float] = {}
    for item in found:
        sizes[item.lower] = sizes.get(item.lower, 0.0) + max(item.least, item.most)
    worth = sum(sizes.values()) / 15
    names = sorted((name for name, size in sizes.items() if size > worth), key=lambda name: -sizes[name])
    return f"use {', '.join([*names[:MOST_NAMED], ''])}or another disk: {elsewhere}<folder>"


def _bytes_in(directory: Path) -> int:
    """The bytes of all files in a run directory."""
    total = 0
    for parent, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:  # removed meanwhile
                continue
    return total
