"""Calibrated profiles on disk: the times that runs with the same work use for it. They are stored in a
sweep's folder and, as each run's own copy, in the run's directory.

A sweep keeps a file for each computation, and one for the work of each codec on it. The first run to write a
file writes it for all: two runs that calibrate at the same time both use the file that exists afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gradwire.harness.comm.topology.registry import depends_on_nodes
from gradwire.harness.files.reading import MissingFileError, UnusableFileError, printable
from gradwire.harness.files.structured import read_json
from gradwire.harness.files.typed import made
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.directory import PROFILE, PROFILE_REMEDY, profile_files
from gradwire.harness.record.identity import DIGITS, computation_id
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.profile import LaneStretch, Quantiles, WorkPiece


@dataclass(frozen=True)
class Origin:
    """The place and time of a profile's measurement."""

    processor: str
    threads: int
    torch: str
    commit: str | None
    date: str
    """The time in UTC, in ISO format."""
    codec: str
    """The codec that was running."""
    steps: int
    taken: float | None = None
    """The share of the machine's CPUs that other processes used meanwhile; None if unknown."""


@dataclass(frozen=True)
class Computation:
    """The computation of a rank in a step. `about` holds the settings that `id` is computed from."""

    id: str
    about: dict[str, Any]
    step: Quantiles
    stretches: list[LaneStretch]
    origin: Origin


@dataclass(frozen=True)
class CodecWork:
    """The work of a codec in a step, also where that is part of the ranks' computation."""

    id: str
    about: dict[str, Any]
    pieces: list[WorkPiece]
    stretches: list[LaneStretch]
    origin: Origin


@dataclass(frozen=True)
class Profile:
    """The profile that one run uses instead of its own measurements, or a collection to choose from.

    `sweep` is the folder of the sweep's profiles, relative to the run's directory, if the run belongs to a
    sweep; missing parts are then calibrated. `source` describes in words where the profile came from.
    """

    computations: list[Computation] = field(default_factory=list)
    codecs: list[CodecWork] = field(default_factory=list)
    sweep: str | None = None
    source: str = ""

    def computation(self, wanted: str) -> Computation | None:
        """The computation of this id."""
        return next((one for one in self.computations if one.id == wanted), None)

    def codec(self, wanted: str) -> CodecWork | None:
        """The codec work of this id."""
        return next((one for one in self.codecs if one.id == wanted), None)


def codec_id(settings: Mapping[str, Any]) -> str:
    """12 hexadecimal digits that two runs share if their codecs do the same work on the same computation: all
    settings count except the seed, the network's links and those that do not affect a step. `settings` as in
    `computation_id`."""
    text = json.dumps([codec_of(settings), computation_id(settings)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def codec_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that codec work depends on, in addition to those of the computation."""
    cluster, overlap, network, topology = (
        dict(settings.get(name) or {}) for name in ("cluster", "overlap", "network", "topology")
    )
    in_nodes = depends_on_nodes(str(topology.get("name")))
    return {
        "codec": settings.get("codec"),
        "topology": topology,
        "parallel": settings.get("parallel"),
        "kernels": (settings.get("kernels") or {}).get("name"),
        "workers": cluster.get("workers"),
        "ranks_per_node": in_nodes and (cluster.get("ranks_per_node") or network.get("ranks_per_node")),
        "segments": overlap.get("segments"),
        **({"captured": True} if _captures(settings) else {}),  # others' ids are as before there were graphs
    }


def _captures(settings: Mapping[str, Any]) -> bool:
    """True if a run with these settings captures what its codec allows: its kernels then follow one another
    without the host, and take less time than step by step."""
    cluster, kernels, measure = (dict(settings.get(name) or {}) for name in ("cluster", "kernels", "measure"))
    return (
        cluster.get("device") == "cuda"
        and kernels.get("graphs", "never") != "never"
        and cluster.get("gradients") != "disk"
        and not measure.get("check_hashes")
    )


def digest_of(part: Computation | CodecWork) -> str:
    """12 hexadecimal digits that identify a measurement."""
    return hashlib.sha256(json.dumps(asdict(part), sort_keys=True).encode()).hexdigest()[:DIGITS]


def computation_text(about: Mapping[str, Any]) -> str:
    """The settings of a computation in a few words."""
    model, train, data, parallel = (
        about.get(name) or {} for name in ("model", "train", "dataset", "parallel")
    )
    return printable(
        f"{model.get('family')} of {model.get('num_layers')} layers of {model.get('hidden_size')}, "
        f"{train.get('accumulation')} x {train.get('micro_batch')} sequences of "
        f"{data.get('sequence_length')}, {parallel.get('name')}, {train.get('precision')} on "
        f"{about.get('device')}"
    )


def computations_text(profile: Profile) -> str:
    """The computations in a profile, in words."""
    return "; ".join(computation_text(one.about) for one in profile.computations[:5]) or "none"


def in_summary(profile: Profile, unknown: int) -> dict[str, Any]:
    """The summary's entry about the profile that a run has used; `unknown` is the number of pieces of work
    that it lacked."""
    entry: dict[str, Any] = {"source": profile.source, "unknown": unknown}
    for one in profile.computations:
        origin = one.origin
        entry["computation"] = digest_of(one)
        entry |= {"processor": origin.processor, "steps": origin.steps, "date": origin.date}
        entry["taken"] = origin.taken
        entry |= {"compute_s": {"p10": one.step.p10, "median": one.step.median, "p90": one.step.p90}}
    for codec in profile.codecs:
        entry["codec"] = digest_of(codec)
    return entry


def read_profile(path: Path, *, inside: Path | None = None) -> Profile:
    """The profile in a file. Raises UnusableFileError, MissingFileError among them."""
    found = made(Profile, read_json(path, remedy=PROFILE_REMEDY, inside=inside), path, remedy=PROFILE_REMEDY)
    parts: list[Computation | CodecWork] = [*found.computations, *found.codecs]
    for one in parts:
        spreads = [each.seconds for each in one.stretches]
        spreads += [each.seconds for each in one.pieces] if isinstance(one, CodecWork) else [one.step]
        if not all(0 <= each.p10 <= each.median <= each.p90 < float("inf") for each in spreads):
            raise UnusableFileError(path, f"{one.id} has seconds that nothing takes", PROFILE_REMEDY)
    return found


def own_profile(directory: Path) -> Profile | None:
    """The profile of the run in `directory`; None if the run uses its own measurements. Raises
    UnusableFileError."""
    try:
        return read_profile(directory / PROFILE, inside=directory)
    except MissingFileError:
        return None


def keep_profile(path: Path, profile: Profile) -> None:
    """Writes a profile atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(profile), indent=1) + "\n")


def offer(folder: Path, part: Computation | CodecWork) -> None:
    """Stores a part in a sweep's folder of profiles, unless it is already there."""
    path = _place(folder, part)
    if path.exists():
        return
    offered = Profile(codecs=[part]) if isinstance(part, CodecWork) else Profile(computations=[part])
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    keep_profile(temporary, offered)
    try:
        os.link(temporary, path)  # fails where another has been first
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)


def _place(folder: Path, part: Computation | CodecWork) -> Path:
    kind = "codec" if isinstance(part, CodecWork) else "computation"
    return folder / f"{kind}-{part.id}.json"


def read_profiles(path: Path) -> Profile:
    """The contents of a file, or of all files in a folder of profiles. Raises UnusableFileError."""
    found = [read_profile(each) for each in profile_files(path)]
    return Profile(
        [one for each in found for one in each.computations], [one for each in found for one in each.codecs]
    )


def sweep_folder(directory: Path, profile: Profile) -> Path | None:
    """The folder of the sweep's profiles that the profile of the run in `directory` refers to."""
    return None if profile.sweep is None else Path(os.path.normpath(directory / profile.sweep))


def count_profile(clock: SimulatedClock, profile: Profile) -> None:
    """Makes a clock use a run's own profile."""
    parts: list[Computation | CodecWork] = [*profile.computations, *profile.codecs]
    stretches = [one for part in parts for one in part.stretches]
    clock.use(stretches, [one for codec in profile.codecs for one in codec.pieces])
