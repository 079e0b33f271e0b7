"""The table of the settings that are read only with other settings: `READ_WITH`.

A setting that nothing reads is refused unless it has its usual value, so that no key is ignored silently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradwire.codecs.fields import default_of
from gradwire.codecs.registry import codec_class
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.models.families import FOLDER
from gradwire.harness.models.vision import VISION
from gradwire.harness.record.settings import Configuration
from gradwire.harness.runtime.errors import ConfigError, shortened


@dataclass(frozen=True)
class ReadWith:
    """Keys that are only read if the setting `reader` has a value that `reads` accepts."""

    keys: tuple[str, ...]
    reader: str
    reads: Callable[[Any], bool]
    otherwise: str = "leave it out"
    """The remedy if nothing reads them."""

    def refusal(self, given: str, now: Any) -> ConfigError:
        """The error for a setting, written as `given`, if the reader's value is `now`."""
        return ConfigError(f"{given} has no effect with {self.reader}={_written(now)}; {self.otherwise}")


def _of_group(group: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{group}.{name}" for name in names)


LENGTHS = tuple(
    ReadWith(
        (f"train.{part}epochs",),
        f"train.{part}steps",
        lambda steps: steps is None,
        f"add train.{part}steps=null, or leave it out",
    )
    for part in ("", "schedule_", "decay_")
)
"""Lengths in epochs, which steps replace: a size's own steps among them."""

READ_WITH = (
    ReadWith(
        _of_group("train", "end_factor", "schedule_steps", "schedule_epochs"),
        "train.schedule",
        lambda schedule: schedule != "steps",
        "leave it out, and set train.decay_epochs and train.decay_factor",
    ),
    ReadWith(
        _of_group("train", "decay_epochs", "decay_steps", "decay_factor"),
        "train.schedule",
        lambda schedule: schedule == "steps",
        "leave it out, or use train.schedule=steps",
    ),
    *LENGTHS,
    ReadWith(
        ("train.momentum",),
        "train.optimizer",
        lambda optimizer: optimizer == "sgd",
        "leave it out, set train.beta1, or use train.optimizer=sgd",
    ),
    ReadWith(
        _of_group("train", "beta1", "beta2", "adam_epsilon"),
        "train.optimizer",
        lambda optimizer: optimizer != "sgd",
        "leave it out, and set train.momentum",
    ),
    ReadWith(
        ("cluster.restarts",),
        "task",
        lambda task: task == "train",
        "it starts again from checkpoints, which only task=train keeps; leave it out",
    ),
    ReadWith(
        ("cluster.gradients",),
        "cluster",
        lambda cluster: cluster != "local",
        "workers of their own keep their own; leave it out or use cluster=virtual",
    ),
    ReadWith(("kernels.graphs",), "task", lambda task: task == "bench" or TASKS[task].trains),
    ReadWith(
        ("codec.decisions",),
        "task",
        lambda task: TASKS[task].trains,
        "a training run follows decisions; leave it out",
    ),
    ReadWith(
        ("network.compute",),
        "task",
        lambda task: TASKS[task].trains or "run" in TASKS[task].reads,
        "nothing computes there; leave it out",
    ),
    ReadWith(
        ("network.compute",),
        "cluster",
        lambda cluster: cluster == "virtual",
        "its time is measured; use cluster=virtual, or leave it out",
    ),
    ReadWith(
        ("network.compute",),
        "network.compute_s",
        lambda given: given is None,
        "leave one of them out",
    ),
    ReadWith(
        _of_group(
            "network",
            *("ranks_per_node", "nics", "intra_rate_mbit", "intra_latency_s", "oversubscription"),
        ),
        "network.fabric",
        lambda fabric: fabric != "star",
        "add network.fabric=two_level, or leave it out",
    ),
    ReadWith(
        ("network.straggler_factor",),
        "network.straggler_range",
        lambda given: not given,
        "leave one of them out",
    ),
    ReadWith(
        ("network.straggler_range",),
        "network.straggler_share",
        lambda share: share > 0,
        "add e.g. network.straggler_share=0.2, or leave it out",
    ),
    ReadWith(
        ("overlap.segments",),
        "codec",
        lambda codec: not codec_class(codec).traits.uses_backend,
        "the backend sends its own messages; leave it out or use codec=fp32",
    ),
    ReadWith(
        _of_group("model", "depths", "bottleneck", "groups"),
        "model.family",
        lambda family: family in (*VISION, FOLDER),
        "leave it out, or use model=resnet50",
    ),
    ReadWith(
        ("dataset.revision",),
        "dataset.path",
        lambda path: path is None,
        "leave one of them out",
    ),
)
"""Keys with the settings that read them; other keys are always read by the tasks that have their group."""


def check_read_settings(config: Configuration) -> None:
    """Raises ConfigError for the first setting that has an unusual value and that nothing reads."""
    for row in READ_WITH:
        unusual = (key for key in row.keys if _is_unusual(config, key))
        key, now = next(unusual, None), _value(config, row.reader)
        if key is not None and now is not _ABSENT and not row.reads(now):
            raise row.refusal(f"{key}={_written(_value(config, key))}", now)


_ABSENT = object()


def _value(config: Configuration, key: str) -> Any:
    """The value of a setting; for a group its name."""
    group, _, field = key.partition(".")
    settings, field = getattr(config, group, None), field or "name"
    if isinstance(settings, Mapping):
        return settings.get(field, _ABSENT)
    return getattr(settings, field, _ABSENT)


def _is_unusual(config: Configuration, key: str) -> bool:
    value = _value(config, key)
    return value is not _ABSENT and value not in (None, _usual(config, key))


def _usual(config: Configuration, key: str) -> Any:
    """The value of a setting unless the user sets it: the model recipe's, else its default."""
    group, _, name = key.partition(".")
    settings = getattr(config, group)
    if isinstance(settings, Mapping):
        return None
    recipe = getattr(getattr(config, "model", None), "recipe", None) if group == "train" else None
    default = next(default_of(each) for each in dataclasses.fields(settings) if each.name == name)
    return getattr(recipe, name, default)


def _written(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else shortened(value)
