"""The state of a run directory, and whether the next attempt resumes or starts over.

`resume=auto` resumes an unfinished run made by the same code, `force` by any code, `never` starts over. A
finished run is run again only with `never`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradwire.harness.checkpoint.folder import (
    FOLDER,
    REMEDY,
    DamagedCheckpointError,
    ForeignCheckpointError,
    checkpoints,
    remove_all,
    remove_unfinished,
    set_aside,
    verified,
)
from gradwire.harness.files.reading import InaccessibleFileError, UnusableFileError
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.attempts import FILE as ATTEMPTS
from gradwire.harness.record.attempts import Attempts, this_code
from gradwire.harness.record.directory import CONFIG, WEIGHTS, divergence_in, is_done
from gradwire.harness.record.identity import differences, run_id
from gradwire.harness.record.seal import refuse_links_in
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.record.writer import (
    RECORD_FILES,
    begin_record,
    check_rows,
    continue_record,
    remove_temporary_files,
)

OWN_NAMES = (*(name for name in RECORD_FILES if name != ATTEMPTS), WEIGHTS, FOLDER)
"""The files that a run overwrites or removes in its directory."""


def is_finished(config: RecordedConfig, directory: Path) -> bool:
    """Returns whether the run with this configuration has finished in `directory` and is not to be run
    again.
    """
    return config.resume != "never" and is_done(directory)


def check_directory(config: RecordedConfig, directory: Path) -> None:
    """Raises ValueError in one line if `directory` contains something this run may neither resume nor
    replace.

    It only reads, so that it can be called before anything starts.
    """
    refuse_links_in(directory)
    earlier = None if config.resume == "never" else Attempts.read(directory)
    if earlier is None:
        _refuse_foreign(directory)
        return
    own = run_id(config)
    if earlier.config_hash != own:
        differ = _differences(config, directory) or f"{earlier.config_hash}, these are {own}"
        raise ValueError(
            f"{directory} holds a run with other settings ({differ}); choose another folder with "
            "hydra.run.dir=, or resume=never to replace it"
        )
    other_code = earlier.code != this_code()
    if other_code and config.resume == "auto" and not is_done(directory) and checkpoints(directory):
        raise ValueError(
            f"{directory} was begun by other code ({earlier.code}, this is {this_code()}); "
            "resume=force resumes with this code, resume=never starts over"
        )


MOST_NAMED = 3
"""The largest number of differing settings that a refusal names."""


def _differences(config: RecordedConfig, directory: Path) -> str:
    """The settings in which the run in `directory` differs from this one; empty if its configuration is not
    readable."""
    try:
        before = read_yaml(directory / CONFIG, remedy=REMEDY, inside=directory)
        found = differences(before, config.mapping())
    except (OSError, ValueError, TypeError, AttributeError):  # it may have been edited
        return ""
    more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return "; ".join(found[:MOST_NAMED]) + more


def _refuse_foreign(directory: Path) -> None:
    """Refuses a folder without `run.json`: nothing says that its contents are a run's and may be replaced."""
    names = [name for name in OWN_NAMES if (directory / name).exists()]
    if names and not (directory / ATTEMPTS).exists():
        raise ValueError(
            f"{directory} holds {', '.join(names)}, but no {ATTEMPTS}, so it is not a run directory; choose "
            "another folder with hydra.run.dir=, or move them away"
        )


def _refuse_diverged(config: RecordedConfig, directory: Path) -> None:
    reason, earlier = divergence_in(directory), Attempts.read(directory) if config.resume == "auto" else None
    if reason and earlier is not None and earlier.code == this_code():
        raise ValueError(
            f"{directory} {reason}, and would again; change a setting (train.lr=, another run), or try from "
            "its newest checkpoint with resume=force"
        )


@dataclass(frozen=True)
class Opened:
    """A run directory ready for an attempt: the checkpoint to resume from, and notes for the user."""

    checkpoint: Path | None
    notes: tuple[str, ...]


def open_run(config: RecordedConfig, directory: Path) -> Opened:
    """Prepares `directory`, which the caller has locked, for the next attempt.

    Finds the newest intact checkpoint whose rows exist, sets others aside and names them in the notes. Cuts
    the rows that the attempt will write again, or clears everything to start over. Raises ValueError as
    `check_directory` does, if checkpoints are intact but all their rows are missing, and if the run has
    diverged, because the same settings and code would diverge again. A sweep first calls `check_directory`
    for all its cells, and a failure here only ends one cell.
    """
    check_directory(config, directory)
    _refuse_diverged(config, directory)
    remove_unfinished(directory)
    remove_temporary_files(directory)
    if config.resume == "never":
        remove_all(directory)
    notes, without_rows = list[str](), list[tuple[Path, UnusableFileError]]()
    for path in checkpoints(directory):
        try:
            state = verified(path, run_id(config))
            check_rows(directory, state.rows)
        except ForeignCheckpointError as error:
            notes.append(f"{error}: set aside as {set_aside(path, 'foreign').name}")
            continue
        except DamagedCheckpointError as error:
            notes.append(f"{error}: set aside as {set_aside(path).name}")
            continue
        except InaccessibleFileError:
            raise
        except UnusableFileError as error:
            without_rows.append((path, error))
            continue
        notes += [
            f"{newer} counts on {lost.path}, which {lost.problem}: set aside as {set_aside(newer).name}"
            for newer, lost in without_rows
        ]
        notes.append(f"resuming after step {state.step}, from {path}")
        notes += continue_record(directory, config, state.step, state.rows)
        return Opened(path, tuple(notes))
    if without_rows:  # the checkpoints are whole: nothing is removed
        raise without_rows[0][1]
    if notes:
        notes.append("no usable checkpoint is left: starting over")
    begin_record(directory, config)
    return Opened(None, tuple(notes))
