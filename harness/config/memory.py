"""The least memory that a run takes, from its shape: what can never fit is refused before anything starts."""

from __future__ import annotations

import os

import psutil
import torch

from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.models.vision import VISION, stage_widths
from gradwire.harness.models.vision import num_parameters as convolutions
from gradwire.harness.parallel.settings import ShardedConfig
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.trainer.settings import RunConfig

PARAMETER_BYTES = 16
"""Float32 parameter, gradient and AdamW's two means."""

MOMENT_BYTES, MAIN_BYTES, GRADIENT_BYTES = 8, 4, 4
"""What sharded training keeps: AdamW's two means, main weight and gradient, in float32."""

PROCESS_BYTES = 150 << 20
"""A worker process with PyTorch loaded."""

GIB = 1 << 30


def check_memory(run: RunConfig) -> None:
    """Refuse, in one line, a training run that takes more than this machine has. Raises ConfigError.

    The estimate is a lower bound: parameters, gradients and optimizer state of every replica here, and what
    one forward pass keeps for the backward pass.
    """
    cluster = run.cluster
    on_gpu = cluster.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        return
    replicas = 1 if cluster.name == "virtual" or on_gpu else _workers_here(run)
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


def _parameter_bytes(run: RunConfig) -> float:
    """Bytes of a parameter in each process: the weight, its gradient, and what the optimizer keeps."""
    if not isinstance(run.parallel, ShardedConfig):
        return PARAMETER_BYTES
    shards = MOMENT_BYTES + (MAIN_BYTES if run.parallel.main == "algorithm2" else 0)
    own = shards if run.cluster.name == "virtual" else shards / run.cluster.size
    return (4 if run.parallel.model_dtype == "float32" else 2) + GRADIENT_BYTES + own


def check_bytes(field: str, value: object, needed: float) -> None:
    """Refuse a setting that makes a task take more than this machine's memory. Raises ValueError."""
    there = psutil.virtual_memory().total
    if needed > there:
        raise ValueError(
            f"{field}={value}: takes at least {needed / GIB:.3g} GiB, and this machine has "
            f"{there / GIB:.3g}; choose less"
        )


def num_parameters(model: ModelConfig) -> int:
    """Parameters of a model of this shape, at least: attention, feed-forward matrices, embeddings; of one for
    images its convolutions, of pretrained weights what their files hold."""
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
    """Some of what each layer keeps of each token, and the logits; of images what convolutions keep."""
    model, width = run.model, 2 if run.train.precision == "bf16" else 4
    if model.family in VISION:
        return int(run.train.micro_batch * width * _pixels_kept(run))
    layer = 3 * model.hidden_size + model.intermediate_size
    tokens = run.train.micro_batch * _sequence_length(run)
    return int(tokens * width * (model.num_layers * layer + _words(model)))


def _evaluation_pass_bytes(run: RunConfig) -> int:
    """The hidden state and the logits of each token; of images the pixels."""
    if run.model.family in VISION:
        return run.eval.micro_batch * 4 * 3 * (run.dataset.image_size or 1) ** 2
    tokens = run.eval.micro_batch * _sequence_length(run)
    return int(tokens * 2 * (run.model.hidden_size + _words(run.model)))


def _pixels_kept(run: RunConfig) -> int:
    """Values that the 3×3 convolutions of an image give, at a quarter of its side in the first stage."""
    side, total = max(1, (run.dataset.image_size or 1) // 4), 0
    for depth, width in zip(run.model.depths, stage_widths(run.model), strict=True):
        total += depth * width * side**2
        side = max(1, side // 2)
    return total


def _sequence_length(run: RunConfig) -> int:
    return run.dataset.sequence_length or run.model.recipe.sequence_length


def _words(model: ModelConfig) -> int:
    """Entries of the vocabulary, at least: a tokenizer trained on little text needs few."""
    decided = model.weights == "pretrained" or model.is_folder
    return int(model.vocab_size if decided else min(model.vocab_size, 1 << 10))


def _workers_here(run: RunConfig) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", run.cluster.size))


def _gpu_bytes() -> int:
    return int(torch.cuda.get_device_properties(0).total_memory)
