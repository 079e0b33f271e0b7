"""Sources of a virtual cluster's compute times: a sweep's profile, which the first run that needs it
calibrates, a profile from a file, or each step's own measurement."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.harness.comm.transport.captured_rounds import SETTLING
from gradwire.harness.comm.world.interface import World
from gradwire.harness.network.settings import (
    FROM_FILE,
    MEASURED,
    NetworkConfig,
    ShapedConfig,
    SimulatedConfig,
)
from gradwire.harness.record.directory import PROFILE, found_profiles, make_directory
from gradwire.harness.record.identity import computation_id, computation_of
from gradwire.harness.record.profiles import (
    CodecWork,
    Computation,
    Origin,
    Profile,
    codec_id,
    codec_of,
    count_profile,
    in_summary,
    keep_profile,
    offer,
    own_profile,
    read_profiles,
    sweep_folder,
)
from gradwire.harness.record.provenance import git_state, machine
from gradwire.harness.runtime.heartbeat import beat
from gradwire.harness.timing.measure.machine import TakenWatch
from gradwire.harness.timing.simulate.profile import (
    observed_lanes,
    observed_work,
    step_seconds,
)
from gradwire.harness.timing.trace.step import StepTrace
from gradwire.harness.trainer.batches import StepBatches
from gradwire.harness.trainer.parts import Parts
from gradwire.harness.trainer.settings import RunConfig

STEPS = 10
"""Discarded steps in which a profile is measured."""


@dataclass(frozen=True)
class ProfileIds:
    """The ids of the parts of a profile that a run's clock uses; None for parts that come from elsewhere."""

    computation: str | None
    codec: str | None

    @classmethod
    def of(cls, settings: Mapping[str, Any], network: NetworkConfig) -> ProfileIds:
        """The parts that a run with these settings uses on this network."""
        given = isinstance(network, SimulatedConfig) and network.compute_s is not None
        elsewhere = isinstance(network, SimulatedConfig) and network.codec_times != MEASURED
        return cls(
            None if given else computation_id(settings),
            None if elsewhere else codec_id(settings),
        )

    @property
    def is_nothing(self) -> bool:
        return self.computation is None and self.codec is None

    def chosen(self, profile: Profile) -> Profile:
        """The profile reduced to these parts."""
        return replace(
            profile,
            computations=[one for one in profile.computations if one.id == self.computation],
            codecs=[one for one in profile.codecs if one.id == self.codec],
        )

    def missing_in(self, profile: Profile) -> list[str]:
        """The parts that the profile lacks, in words."""
        found = []
        if self.computation is not None and profile.computation(self.computation) is None:
            found.append("computation")
        if self.codec is not None and profile.codec(self.codec) is None:
            found.append("codec work")
        return found


def settle_profile(config: RunConfig, directory: Path, parts: Parts, batches: StepBatches) -> Profile | None:
    """Sets the profile that the clock of a virtual cluster uses, after the warm-up, and stores it in the
    run's directory. Returns None if every step's own measurement is used.

    A run of a sweep uses the sweep's profile, and calibrates missing parts; a run that already has a profile
    keeps it. Raises UnusableFileError.
    """
    world, network = parts.world, config.network
    if world.clock is None or isinstance(network, ShapedConfig):
        return None
    settings = config.mapping()
    wanted = ProfileIds.of(settings, network)
    if network.compute == MEASURED or wanted.is_nothing:
        (directory / PROFILE).unlink(missing_ok=True)
        return None
    if network.compute.startswith(FROM_FILE):
        given = network.compute.removeprefix(FROM_FILE)
        profile = replace(wanted.chosen(read_profiles(found_profiles(Path(given)))), source=f"file {given}")
    else:
        kept = own_profile(directory)
        if kept is None:
            return None
        profile = _of_sweep(wanted, kept, settings, directory, parts, batches)
        if not profile.computations and not profile.codecs:  # another run's, that was here before
            (directory / PROFILE).unlink()
            return None
    keep_profile(directory / PROFILE, profile)
    for what in wanted.missing_in(profile):
        print(f"note: {profile.source} has no {what} of this run, which is counted as measured", flush=True)
    count_profile(world.clock, profile)
    return profile


def profile_in_summary(world: World, profile: Profile | None) -> dict[str, Any] | None:
    """The entry of the run's summary that describes the profile used by its clock."""
    if profile is None or world.clock is None:
        return None
    return in_summary(profile, world.clock.num_unknown)


def _of_sweep(
    wanted: ProfileIds,
    kept: Profile,
    settings: Mapping[str, Any],
    directory: Path,
    parts: Parts,
    batches: StepBatches,
) -> Profile:
    """The sweep's profile, with missing parts calibrated."""
    profile = wanted.chosen(kept)
    folder = sweep_folder(directory, kept)
    if not wanted.missing_in(profile) or folder is None:
        return profile
    found = _from_folder(wanted, profile, folder)
    missing = wanted.missing_in(found)
    if missing:
        beat("calibration")
        watch = TakenWatch()
        steps = calibration_steps(parts, batches)
        for part in calibrated(settings, steps, taken=watch.close()):
            if ("computation" if isinstance(part, Computation) else "codec work") in missing:
                offer(folder, part)
        found = _from_folder(wanted, profile, folder)
    return found


def _from_folder(wanted: ProfileIds, profile: Profile, folder: Path) -> Profile:
    """The profile, with missing parts filled in from the sweep's folder."""
    there = wanted.chosen(read_profiles(folder)) if folder.is_dir() else Profile()
    return replace(
        profile,
        computations=profile.computations or there.computations,
        codecs=profile.codecs or there.codecs,
        source="the sweep's profile",
    )


def calibration_steps(parts: Parts, batches: StepBatches) -> list[StepTrace]:
    """Measures steps from the run's current state, and restores it afterwards: model, optimizer, codecs,
    buffers. No bytes or times are counted. Where rounds are captured, steps before that are left out: their
    codec times are others."""
    world, parallelism = parts.world, parts.parallelism
    state = {
        part: {name: value.clone() for name, value in tensors.items()}
        for part, tensors in parallelism.state_dict().items()
    }
    found = list[StepTrace]()
    before = 0 if world.captured_buckets() is None else SETTLING
    for step in range(before + STEPS):
        beat()
        world.begin_step(0.0)
        parallelism.step(step, batches.of_step(step), 0.0, False)
        found.append(world.measured)
    del found[:before]
    parallelism.finish()

    def read(part: str) -> dict[str, Tensor]:
        return state.get(part, {})

    parallelism.load_state_dict(read)
    world.forget()
    return found


def calibrated(
    settings: Mapping[str, Any], steps: list[StepTrace], *, taken: float | None = None
) -> list[Computation | CodecWork]:
    """The profiles of computation and codec work in measured steps of a run with these settings; meanwhile
    other processes used the share `taken` of the machine's CPUs."""
    commit, _ = git_state()
    about = codec_of(settings)
    origin = Origin(
        processor=str(machine()["processor"]),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        commit=commit,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        codec=str(settings["codec"]["name"]),
        steps=len(steps),
        taken=taken,
    )
    lanes, work = observed_lanes(steps, of_codec=False), observed_lanes(steps, of_codec=True)
    return [
        Computation(computation_id(settings), computation_of(settings), step_seconds(steps), lanes, origin),
        CodecWork(codec_id(settings), about, observed_work(steps), work, origin),
    ]


def request_profile(directory: Path, folder: Path) -> None:
    """Makes the run in `directory`, which may still be empty, use the profile in a sweep's `folder`, or
    calibrate it there; parts that the run already has are kept."""
    make_directory(directory)
    kept = own_profile(directory) or Profile()
    sweep = os.path.relpath(folder.resolve(), directory.resolve())
    keep_profile(directory / PROFILE, replace(kept, sweep=sweep))
