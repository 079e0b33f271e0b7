"""What a run directory says of how its gradients changed: saved steps, entropies by step, or both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradwire.harness.files.finite_json import dumps
from gradwire.harness.record.directory import CONFIG, is_done
from gradwire.harness.record.entropies import RecordedEntropies, read_entropies
from gradwire.harness.record.gradients import SavedGradients, read_gradients
from gradwire.harness.record.saved_steps import ENTROPIES, GRADIENTS, step_files
from gradwire.harness.record.seal import check_sealed
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.tables import Page
from gradwire.harness.studies.evolution.analyses import read_series
from gradwire.harness.studies.evolution.collect import Evolution, collect
from gradwire.harness.studies.evolution.sampling import (
    Sampling,
    sampling,
    sampling_notes,
    sampling_plots,
    sampling_tables,
)
from gradwire.harness.studies.evolution.views import NOTES, plots, tables
from gradwire.harness.studies.statistics.study import StatisticsConfig

REMEDY = "measure.save_gradients_at=[10,100,190] keeps three, measure.entropy_every=1 records entropies"

STEP = "step"


@dataclass(frozen=True)
class RunEvolution:
    """`evolution` is about saved steps and None without two of them, `sampling` about entropies by step.

    `about` is what the run's files say of it, `heading` its name and size.
    """

    evolution: Evolution | None
    sampling: Sampling | None
    about: Mapping[str, Any]
    num_coordinates: int
    heading: str

    def to_json(self, about: Mapping[str, object]) -> str:
        """Valid JSON that begins with `about`; maps of correlations are in the plots alone."""
        found: dict[str, Any] = {**about, "evolution": {}}
        if self.evolution is not None:
            content = asdict(self.evolution)
            del content["maps"]
            found |= {"evolution": self.evolution.figures, **content}
        if self.sampling is not None:
            found["sampling"] = asdict(self.sampling)
        return dumps(found, indent=1) + "\n"

    def text(self) -> str:
        """The tables under the heading."""
        shown, notes = [], list[str]()
        if self.evolution is not None:
            shown += tables(self.evolution)
            notes += NOTES
        if self.sampling is not None:
            shown += sampling_tables(self.sampling)
            notes += sampling_notes(self.sampling)
        return f"{self.heading}\n\n{Page(shown, notes).text}"

    def plots(self) -> list[Plot]:
        drawn = [] if self.evolution is None else plots(self.evolution, self.heading)
        return drawn if self.sampling is None else [*drawn, *sampling_plots(self.sampling, self.heading)]


def check_run(folder: str | Path) -> None:
    """Raises ValueError in one line unless the folder has two saved steps or entropies by step."""
    count = len(step_files(folder))
    if count < 2 and not _has_entropies(folder):
        raise ValueError(
            f"gradients={folder}: this folder has {count or 'no'} saved step{'s' * (count != 1)} and no "
            f"{ENTROPIES}; give a run directory with two steps, or with entropies: {REMEDY}"
        )


def describe(folder: str | Path, settings: StatisticsConfig, seed: int) -> RunEvolution:
    """All that the folder has, which `check_run` has accepted; `seed` is that of random numbers.

    Raises ValueError in one line for files that cannot be read.
    """
    files = list(step_files(folder).values())
    evolution = last = entropies = found = None
    if len(files) > 1:
        shares = list(map(float, settings.rank_shares))
        evolution, last = collect(read_series(folder), shares, seed), read_gradients(files[-1])
    if _has_entropies(folder):
        entropies = read_entropies(Path(folder).expanduser())
        alphas = list(map(float, settings.alphas))
        found = sampling(entropies, alphas, settings.window, settings.windows)
    of_matrices = 0 if entropies is None else sum(each.numel for each in entropies.matrices)
    numel = of_matrices if last is None else last.numel
    heading = _heading(folder, evolution, found, numel)
    return RunEvolution(evolution, found, _about(last, entropies), numel, heading)


def _has_entropies(folder: str | Path) -> bool:
    """Whether there are any; raises UnusableFileError where a completed record has lost or changed them."""
    path = Path(folder).expanduser() / ENTROPIES
    check_sealed(path)
    return os.path.lexists(path)


def _about(last: SavedGradients | None, entropies: RecordedEntropies | None) -> Mapping[str, Any]:
    """What the files say of the run, but for the step."""
    about = (last.about or {}) if last is not None else entropies.about if entropies is not None else {}
    return {key: value for key, value in about.items() if key != STEP}


def _heading(folder: str | Path, evolution: Evolution | None, found: Sampling | None, numel: int) -> str:
    place = Path(folder).expanduser().resolve()
    steps = [] if evolution is None else [f"{len(evolution.steps)} saved steps"]
    steps += [] if found is None else [f"entropies of {len(found.steps):,} steps"]
    run = place.parent if place.name == GRADIENTS else place
    if (run / CONFIG).is_file() and not is_done(run):
        steps.append("of an unfinished run")
    name = place.parent.name if place.name == GRADIENTS else place.name
    return " · ".join([name, *steps, f"{numel:,} coordinates"])
