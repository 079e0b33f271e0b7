"""One profile for all of a sweep's runs on the virtual cluster that do the same work."""

from __future__ import annotations

from gradwire.harness.checkpoint.folder import checkpoints
from gradwire.harness.network.settings import SHARED, ShapedConfig
from gradwire.harness.record.profile_files import FOLDER
from gradwire.harness.record.profiles import CodecWork, Computation, offer, own_profile
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.tasks.sweep_plan import Plan
from gradwire.harness.trainer.calibration import request_profile
from gradwire.harness.trainer.settings import RunConfig


def share_profiles(plan: Plan) -> None:
    """Lets the sweep's unfinished runs take its profiles, or calibrate them for all; those of runs that have
    one already are the sweep's.

    A run by itself shares nothing, and one that has begun by counting what each step takes goes on so. Raises
    ValueError where a run's directory cannot be used.
    """
    cells = [cell for cell in plan.cells if cell.directory is not None and shares(cell.config)]
    if len(cells) < 2:
        return
    folder = plan.output / FOLDER
    for cell in sorted(cells, key=lambda cell: not cell.finished):
        assert cell.directory is not None
        kept = own_profile(cell.directory)
        parts: list[Computation | CodecWork] = [] if kept is None else [*kept.computations, *kept.codecs]
        for part in parts:
            offer(folder, part)
        measures = kept is None and bool(checkpoints(cell.directory)) and cell.config.resume != "never"
        if not cell.done and not measures:
            request_profile(cell.directory, folder)


def shares(config: RecordedConfig) -> bool:
    """Whether a run takes a profile that it shares with others."""
    if not isinstance(config, RunConfig) or config.cluster.name != "virtual":
        return False
    return not isinstance(config.network, ShapedConfig) and config.network.compute == SHARED
