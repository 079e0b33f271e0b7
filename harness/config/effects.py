"""The table of the settings that are read only with other settings: `READ_WITH`.

A setting that nothing reads is refused unless it has its usual value, so that no key is ignored silently.
"""

from __future__ import annotations

import dataclasses

from gradwire.codecs.registry import codec_class
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.models.families import FOLDER
from gradwire.harness.models.vision import OBJECTIVE as IMAGES
from gradwire.harness.models.vision import VISION
from gradwire.harness.parallel.settings import DataParallelConfig, ShardedConfig
from gradwire.harness.runtime.effects import ReadWith, keys_of

LENGTHS = tuple(
    ReadWith(
        (f"train.{part}epochs",),
        (f"train.{part}steps",),
        lambda steps: steps is None,
        f"add train.{part}steps=null, or leave it out",
    )
    for part in ("", "schedule_", "decay_")
)
"""Lengths in epochs, which steps replace: a size's own steps among them."""

OF_TRAIN = (
    ReadWith(
        keys_of("train", "end_factor", "schedule_steps", "schedule_epochs"),
        ("train.schedule",),
        lambda schedule: schedule != "steps",
        "leave it out, and set train.decay_epochs and train.decay_factor",
    ),
    ReadWith(
        keys_of("train", "decay_epochs", "decay_steps", "decay_factor"),
        ("train.schedule",),
        lambda schedule: schedule == "steps",
        "leave it out, or use train.schedule=steps",
    ),
    *LENGTHS,
    ReadWith(
        ("train.momentum",),
        ("train.optimizer",),
        lambda optimizer: optimizer == "sgd",
        "leave it out, set train.beta1, or use train.optimizer=sgd",
    ),
    ReadWith(
        keys_of("train", "beta1", "beta2", "adam_epsilon"),
        ("train.optimizer",),
        lambda optimizer: optimizer != "sgd",
        "leave it out, and set train.momentum",
    ),
    ReadWith(
        keys_of("measure", "trace_every", "trace_mb"),
        ("measure.trace",),
        lambda traces: traces,
    ),
    ReadWith(
        keys_of("measure", "trace_every", "trace_mb"),
        ("measure.spans",),
        lambda spans: spans,
        "traces are made of spans; leave it out",
    ),
    ReadWith(
        ("measure.entropy_rates",),
        ("measure.entropy_every",),
        lambda every: every > 0,
        "add e.g. measure.entropy_every=10, or leave it out",
    ),
)

OF_WORKERS = (
    ReadWith(
        ("cluster.restarts",),
        ("task",),
        lambda task: task == "train",
        "it starts again from checkpoints, which only task=train keeps; leave it out",
    ),
    ReadWith(
        ("cluster.share_device",),
        ("task",),
        lambda task: task == "train",
        "ranks that share a device measure no network, and this task measures one; leave it out",
    ),
    ReadWith(
        ("cluster.gradients",),
        ("cluster",),
        lambda cluster: cluster != "local",
        "workers of their own keep their own; leave it out or use cluster=virtual",
    ),
    ReadWith(
        ("cluster.ranks_per_node",),
        ("task",),
        lambda task: task != "simulate",
        "all its workers are on one switch; leave it out",
    ),
    ReadWith(("kernels.graphs",), ("task",), lambda task: task == "bench" or TASKS[task].trains),
    ReadWith(
        ("codec.decisions",),
        ("task",),
        lambda task: TASKS[task].trains,
        "a training run follows decisions; leave it out",
    ),
    ReadWith(
        ("overlap.segments",),
        ("codec",),
        lambda codec: not codec_class(codec).traits.uses_backend,
        "the backend sends its own messages; leave it out or use codec=fp32",
    ),
)

OF_PARALLEL = (
    ReadWith(
        ("parallel.num_blocks",),
        ("parallel.layers",),
        lambda layers: not layers,
        "the layers name the blocks; leave one of them out",
    ),
    ReadWith(
        ("parallel.bucket_cap_mb",),
        ("parallel",),
        lambda parallel: parallel != "blocks",
        "blocks are synchronized whole; leave it out, or set parallel.num_blocks",
    ),
    ReadWith(
        tuple(
            f"parallel.{field.name}"
            for settings in (DataParallelConfig, ShardedConfig)
            for field in dataclasses.fields(settings)
            if field.name not in ("name", "model_dtype", "weights", "weight_bits", "weight_group")
        ),
        ("task",),
        lambda task: task != "allreduce",
        "it has one bucket and updates nothing; leave it out",
    ),
    ReadWith(
        keys_of("parallel", "weight_bits", "weight_group"),
        ("parallel.weights",),
        lambda weights: weights != "exact",
        "choose parallel.weights=qw or qwd, or leave it out",
    ),
)

OF_NETWORK = (
    ReadWith(
        keys_of("network", "compute", "blocks"),
        ("task",),
        lambda task: task != "allreduce",
        "nothing computes there; leave it out",
    ),
    ReadWith(
        ("network.compute",),
        ("task",),
        lambda task: TASKS[task].trains or "run" in TASKS[task].reads,
        "its compute times are given; leave it out",
    ),
    ReadWith(
        ("network.compute",),
        ("cluster",),
        lambda cluster: cluster == "virtual",
        "its time is measured; use cluster=virtual, or leave it out",
    ),
    ReadWith(
        ("network.compute",),
        ("network.compute_s",),
        lambda seconds: seconds is None,
        "leave one of them out",
    ),
    ReadWith(
        keys_of("network", "blocks", "jitter_per"),
        ("parallel",),
        lambda parallel: parallel != "pipeline",
        "stages are not blocks; leave it out, or use another parallelism",
    ),
    ReadWith(
        ("network.blocks",),
        ("network.compute_s",),
        lambda seconds: seconds is not None,
        "measured times are not divided; add e.g. network.compute_s=1.5, or leave it out",
        read_by=("predict",),  # its computation may be given in other ways, too
    ),
    ReadWith(
        keys_of(
            "network",
            *("ranks_per_node", "nics", "intra_rate_mbit", "intra_latency_s", "oversubscription"),
        ),
        ("network.fabric",),
        lambda fabric: fabric != "star",
        "add network.fabric=two_level, or leave it out",
    ),
    ReadWith(
        ("network.straggler_factor",),
        ("network.straggler_range",),
        lambda given: not given,
        "leave one of them out",
    ),
    ReadWith(
        ("network.straggler_range",),
        ("network.straggler_share",),
        lambda share: share > 0,
        "add e.g. network.straggler_share=0.2, or leave it out",
    ),
)

OF_MODEL = (
    ReadWith(
        keys_of("model", "depths", "bottleneck", "groups"),
        ("model.family",),
        lambda family: family in (*VISION, FOLDER),
        "leave it out, or use model=resnet50",
    ),
    ReadWith(
        ("model.tokenizer",),
        ("model.objective",),
        lambda objective: objective != IMAGES,
        "images have no tokens; leave it out",
    ),
    ReadWith(
        ("model.dropout",),
        ("model.objective",),
        lambda objective: objective != IMAGES,
        "add model.dropout=0",
        usual=0.0,
    ),
    ReadWith(
        ("model.path",),
        ("model.weights", "model.family"),
        lambda weights, family: weights == "pretrained" or family == FOLDER,
        "use model=folder model.path=<folder>, or add model.weights=pretrained",
    ),
)

OF_STUDIES = (
    ReadWith(
        ("simulate.bits",),
        ("simulate.scheme",),
        lambda scheme: scheme == "fixed",
        "leave it out, or use simulate.scheme=fixed",
    ),
    ReadWith(
        keys_of("simulate", "floor", "margin_s", "gain"),
        ("simulate.scheme",),
        lambda scheme: scheme == "aqgb",
        "leave it out, or use simulate.scheme=aqgb",
    ),
    ReadWith(
        ("predict.baseline_workers",),
        keys_of("predict", "baseline_tflops", "baseline_step_s"),
        lambda tflops, step_s: (tflops, step_s) != (None, None),
        "add one of them, or leave it out",
    ),
    ReadWith(
        ("predict.micro_batches",),
        ("parallel",),
        lambda parallel: parallel == "pipeline",
        "leave it out, or use parallel=pipeline",
    ),
)

READ_WITH = (*OF_TRAIN, *OF_WORKERS, *OF_PARALLEL, *OF_NETWORK, *OF_MODEL, *OF_STUDIES)
"""Keys with the settings that read them; other keys are always read by the tasks that have their group."""
