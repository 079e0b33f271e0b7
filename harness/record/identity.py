"""Ids computed from settings: of a run, from the settings that change its results, and of a computation that
several runs share."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from gradwire.codecs.plugins import ENTRY_POINTS, plugins_of, source_digest
from gradwire.codecs.wording import shortened
from gradwire.harness.comm.topology.registry import depends_on_nodes
from gradwire.harness.data.formats import format_of
from gradwire.harness.files.hostile import files_in
from gradwire.harness.network.settings import CODEC_TIMES, FROM_FILE, SHARED
from gradwire.harness.record.directory import ENTROPIES, found_profiles, profiles_digest, step_files
from gradwire.harness.record.settings import RecordedConfig

REMEDY = "use a folder that holds only files to be read"

WITHOUT_EFFECT = (
    "tracking",
    "size",
    "resume",
    "plots",
    "cluster.timeout_s",
    "cluster.hang_s",
    "cluster.restarts",
    "cluster.gradients",
    "network.preset",
    "train.log_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.max_skipped",
    "kernels.graphs",
    "measure.trace",
    "measure.trace_every",
    "measure.trace_mb",
    "model.architecture",  # as model.path or model.pretrained says
    "model.parameters",
    "replay.plots",
    "run",  # retime.digest says which
    "checkpoint",  # score.digest says which ...
    "score.data",  # ... and on what
)
"""Groups and keys that change no result. (The id contains every value set by `size`.)"""

FOLLOWS = {"score.digest": "checkpoint", "retime.digest": "run"}
"""Keys that are set automatically, with the keys that describe their differences: e.g. if checkpoints of a
sweep differ, so do their digests."""

GRADIENTS = "gradients"

FILES = (
    ("dataset", "path", False),
    ("model", "path", True),
    ("model", "tokenizer", None),
    (GRADIENTS, "", True),
    ("codec", "decisions", True),
    ("train", "start_from", True),
)
"""Settings that name files, by group and field (or root key). The value is True if every file of a folder
counts, False if only known formats do; None means that only a folder is a path and anything else is a name.
"""

ADDED = {("codec", "aqgb"): {"base": "embedded", "scale": "block", "bits": None, "leftovers": "kept"}}
"""Settings of a choice, by group and name, that were added when runs had been recorded, with the values that
mean what those runs did: an id holds them only if they differ."""

LATER = {"replay.bound": "mean"}
"""Settings by group and field that were added later, likewise, in groups that are not chosen by a name."""

WHOLE_FILE_BYTES = 64 * 2**20
"""Files of at least this size count by name and size only, smaller ones also by their contents."""


def run_id(config: RecordedConfig) -> str:
    """12 hexadecimal digits that change when a setting that changes the result does.

    For data, weights, saved gradients, profiles and a device's codec times, contents count, not paths.
    """
    return settings_id(config.mapping())


def settings_id(found: Mapping[str, Any]) -> str:
    """`run_id` for a run's settings as plain values, as in its `config.yaml`."""
    text = json.dumps(_identifying(found), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings in which two runs with different ids differ, e.g. `train.steps=5 there, 10 here`.

    Settings are plain values, as in `config.yaml`: those of the existing run, and of this one. For a choice
    that differs only the name is given.
    """
    found, own = dict(_flat(_identifying(before))), dict(_flat(_identifying(now)))
    shown, own_shown = dict(_flat(before)), dict(_flat(now))
    keys = [key for key in {**own, **found} if found.get(key) != own.get(key)]
    chosen = [key.removesuffix(".name") for key in keys if key.endswith(".name") and key != "model.name"]
    differing = []
    for key in keys:
        if any(key.startswith(f"{group}.") and key != f"{group}.name" for group in chosen):
            continue
        there, here = shown.get(key), own_shown.get(key)
        name = key.removesuffix(".name")
        same = f"{name}={shortened(here)} with other contents"
        differing.append(
            same if there == here else f"{name}={shortened(there)} there, {shortened(here)} here"
        )
    return differing


WHERE_AND_WHEN = ("cluster", "network", "overlap", "kernels", "measure", "eval")
"""Groups that determine where a run happens and what is reported, not what is learned: they may differ
between a run and another one that follows its decisions. In `cluster` the number of workers counts, and the
number per node if the topology depends on it."""


def decided_about(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run's decisions depend on, by dotted key: those of model, data, training and
    codec.
    """
    settings = _identifying(found)
    cluster = settings["cluster"]
    placed = {"cluster.workers": cluster["workers"]}
    if depends_on_nodes(found["topology"]["name"]):
        placed["cluster.ranks_per_node"] = cluster.get("ranks_per_node")
    for group in WHERE_AND_WHEN:
        settings.pop(group, None)
    settings["codec"].pop("decisions", None)
    plain: dict[str, Any] = json.loads(json.dumps(dict(_flat(settings)) | placed))
    return plain


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _identifying(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that change a result."""
    settings = copy.deepcopy(dict(found))
    for key in WITHOUT_EFFECT:
        group, _, field = key.partition(".")
        if field:
            settings.get(group, {}).pop(field, None)
        else:
            settings.pop(group, None)
    for group, field, every_file in FILES:
        holder = settings.get(group, {}) if field else settings
        given: Any = holder.get(field or group)
        places = given if isinstance(given, list) else [given]
        if given is not None and (every_file is not None or Path(given).expanduser().is_dir()):
            prints = [
                data_fingerprint(
                    # Name and size do not distinguish files of gradients of the same model, so their contents
                    # count.
                    Path(place),
                    every_file=every_file is not False or settings.get("dataset", {}).get("kind") == "images",
                    whole=group == GRADIENTS,
                    files=_described_files(Path(place)) if group == GRADIENTS else None,
                )
                for place in places
            ]
            holder[field or group] = prints[0] if len(prints) == 1 else prints
    if not settings.get("cluster", {}).get("share_device", True):
        del settings["cluster"]["share_device"]  # as in records from before there was a choice
    for (group, name), before in ADDED.items():
        holder = settings.get(group, {})
        if holder.get("name") == name:
            settings[group] = {
                key: value for key, value in holder.items() if key not in before or before[key] != value
            }
    for key, before_it in LATER.items():
        group, _, field = key.partition(".")
        if settings.get(group, {}).get(field) == before_it:
            del settings[group][field]
    network = settings.get("network", {})
    if network.get("codec_times", CODEC_TIMES[0]) not in CODEC_TIMES:
        network["codec_times"] = hashlib.sha256(Path(network["codec_times"]).read_bytes()).hexdigest()
    compute = str(network.get("compute", SHARED))
    if compute.startswith(FROM_FILE):
        path = found_profiles(Path(compute.removeprefix(FROM_FILE)))
        network["compute"] = f"{FROM_FILE}{profiles_digest(path)}"
    chosen = {kind: settings.get(kind, {}).get("name") for kind in ENTRY_POINTS}
    for kind, name in plugins_of(chosen).items():  # as data does: another source is another run
        settings[kind]["name"] = [name, source_digest(kind, name)]
    return settings


def _described_files(path: Path) -> list[Path] | None:
    """The files of a run directory that task=statistics reads, so that plots drawn later do not change the
    id. None for a file."""
    path = path.expanduser()
    if not path.is_dir():
        return None
    entropies = path / ENTROPIES
    return [*step_files(path).values(), *([entropies] if entropies.is_file() else [])]


def data_fingerprint(
    path: Path, *, every_file: bool = False, whole: bool = False, files: Sequence[Path] | None = None
) -> str:
    """Hash of a file, or of a folder's `files` (by default those of known formats, or with `every_file` all):
    relative names, sizes, contents.

    `whole` also reads large files.
    """
    path = path.expanduser()
    if files is None:
        wanted = bool if every_file else format_of
        found = sorted(files_in(path, remedy=REMEDY, wanted=wanted)) if path.is_dir() else []
        files = [path] if path.is_file() else found
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        name = file.name if file == path else file.relative_to(path).as_posix()
        digest.update(f"{name}\n{status.st_size}\n".encode())
        if whole or status.st_size < WHOLE_FILE_BYTES:
            digest.update(_file_digest(file.resolve(), (status.st_size, status.st_mtime_ns)))
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _file_digest(file: Path, version: tuple[int, int]) -> bytes:
    """sha256 of a file's contents, cached per `version` (size and time of change)."""
    assert version
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").digest()


NOT_OF_THE_MODEL = ("name", "recipe", "pretrained", "tokenizer", "paper_dataset", "weights", "path")
"""Fields of `model` that describe its weights and training, not the computation of a pass."""

OF_THE_BATCHES = ("kind", "sequence_length", "image_size")
"""Fields of `dataset` that determine the shapes of a micro-batch."""

OF_THE_TRAINING = ("micro_batch", "accumulation", "optimizer", "precision")

NOT_OF_THE_PARALLELISM = ("bucket_cap_mb", "weights", "weight_bits", "weight_group")
"""Fields of `parallel` that determine how gradients are divided for sending, and how weights are encoded."""

BY_REPLICAS = ("ddp",)
"""Parallelisms in which the work of a rank does not depend on the number of workers."""

PACKED = "documents"
"""The kind of data whose micro-batches are all full; for others, lengths depend on the data."""

DIGITS = 12


def computation_id(settings: Mapping[str, Any]) -> str:
    """12 hexadecimal digits that two runs share if their ranks compute the same: the same model and shapes,
    micro-batches, optimizer, precision and device, spread over the workers in the same way.

    Codec, topology, network, overlap, seed, learning rate and number of steps do not count. `settings` are
    plain values, as in a run's `config.yaml`; groups that it lacks count as empty.
    """
    text = json.dumps(computation_of(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def computation_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that `computation_id` is computed from, by group."""
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
    if cluster.get("share_device"):  # it computes at the speed that the others leave it
        spread["on_one_device"] = cluster.get("workers")
    return {
        "model": shape,
        "dataset": batches,
        "train": passes,
        "parallel": spread,
        "device": cluster.get("device"),
    }
