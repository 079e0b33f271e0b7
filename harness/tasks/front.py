"""The part of `run.py` before Hydra: it refuses impossible commands in one line, and suppresses output of
ranks other than 0.

Help, and the refusal of a mistyped key, choice or value, import no PyTorch: they take one second, not five.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from gradwire.harness.config.compose import (
    VERSION_BASE,
    compose,
    composed_hydra,
    prepare,
    without_null_choices,
)
from gradwire.harness.config.explain import check_launcher, plain
from gradwire.harness.config.flags import for_hydra, read_flags, version_text
from gradwire.harness.config.help_pages import help_page
from gradwire.harness.config.overrides import choices_of, keep_for_sweep, parse, shown, single_lines
from gradwire.harness.config.own_files import FLAG, use_folder
from gradwire.harness.config.rules import GIVEN, check
from gradwire.harness.config.run_name import run_directory
from gradwire.harness.config.typed import settings_of, task_of
from gradwire.harness.launch.slurm import adopt_slurm_ranks, check_launched_ranks, started_as_rank
from gradwire.harness.models.settings import check as check_model
from gradwire.harness.record.directory import make_directory
from gradwire.harness.record.settings import Configuration
from gradwire.harness.runtime.conf import CONFIG_NAME, conf_directory
from gradwire.harness.runtime.errors import ConfigError, refuse, refused_as_config_error, shortened
from gradwire.harness.runtime.interrupts import raise_on_interrupt
from gradwire.harness.runtime.output import guard_output, output_was_taken
from gradwire.harness.runtime.program import program, remember_command
from gradwire.harness.trainer.settings import RunConfig

PLAN = "task=plan"

MAIN = "gradwire.harness.tasks.main"
"""The module that runs tasks. It imports PyTorch, so it is only imported if nothing has been refused."""


def start() -> None:
    """Checks the command line, then passes it to Hydra, which calls `run_task` or the sweeper."""
    guard_output()
    try:
        adopt_slurm_ranks()
        check_launched_ranks()
        prepare()
        remember_command(sys.argv[1:])
        arguments = arranged(sys.argv[1:])
        page = asked_page(arguments)
        checked = check_command_line(arguments) if page is None else None
        flags = read_flags(arguments)
        if page is None and checked is None and (_sweeps_here(flags) or _runs_sweep(flags)):
            flags.multirun, flags.overrides = True, keep_for_sweep(flags.overrides)
        sys.argv[1:] = for_hydra(flags)
    except ConfigError as error:
        refuse(error)
    if page is not None:
        print(page)
        if not output_was_taken():
            sys.exit(1)
        return
    if "--shell-completion" in arguments and not can_be_completed(os.environ.get("COMP_LINE", "")):
        return
    if int(os.environ.get("RANK", "0")) > 0:
        sys.argv.append("hydra.run.dir=.")  # only rank 0 makes the run directory

    def run(config: Any) -> int:
        from gradwire.harness.tasks.main import run_task

        raise_on_interrupt()
        return run_task(config, checked)

    run.__module__ = MAIN  # Hydra names the job after it
    hydra.main(version_base=VERSION_BASE, config_path=str(conf_directory()), config_name=CONFIG_NAME)(run)()


def arranged(arguments: Sequence[str]) -> list[str]:
    """Moves flags first, as Hydra's parser requires, and drops overrides that choose nothing. Raises
    ConfigError."""
    flags = read_flags(arguments)
    flags.overrides = without_null_choices(flags.overrides)
    of_sweep = flags.multirun or any(text.startswith("sweeps=") for text in flags.overrides)
    if PLAN in flags.overrides and of_sweep and not flags.help:  # a sweep's file chooses the task
        flags.overrides = ["sweep.plan=true" if text == PLAN else text for text in flags.overrides]
    own = [] if flags.config_dir is None else [f"{FLAG}={flags.config_dir}"]
    return [*own, *(["--version"] if flags.version else []), *for_hydra(flags)]


def can_be_completed(line: str) -> bool:
    """True if the shell's line so far is valid; if so, the user's own files are completed, too."""
    words = line.split()
    starts = [number for number, word in enumerate(words) if Path(word).name in ("run.py", "gradwire")]
    typed = words[starts[0] + 1 if starts else 1 :]
    try:
        flags = read_flags(typed if line.endswith(" ") else typed[:-1])
        use_folder(flags.config_dir)
        overrides = parse(flags.overrides)
        compose(single_lines(overrides), named_by_user=False)  # nothing is imported before Enter
    except ConfigError:
        return False
    return True


def asked_page(arguments: Sequence[str]) -> str | None:
    """The page that the command line asks for: a help page or the version; None if it asks for none."""
    flags = read_flags(arguments)
    if flags.version:
        return version_text()
    if not flags.help:
        return None
    use_folder(flags.config_dir)
    return help_page(conf_directory(), flags.overrides)


def check_command_line(arguments: Sequence[str]) -> Configuration | None:
    """Raises ConfigError for overrides that cannot be composed and, for a single run, for a configuration
    that cannot run.

    Returns the settings of a single run; None if the command line asks for something else. The sweeper checks
    the cells of a sweep, all of them before the first one starts.
    """
    flags = read_flags(arguments)
    use_folder(flags.config_dir)
    if flags.help or flags.hydra_help or flags.shell_completion or flags.version:
        return None
    overrides = parse(flags.overrides)
    for override in overrides:
        if override.key_or_group == "hydra/launcher":
            check_launcher(str(override.value()), srun=shutil.which("srun") is not None)
    single = single_lines(overrides)
    if flags.multirun or len(single) < len(overrides) or _runs_sweep(flags):
        single = choices_of(single)  # a value may belong to some of the sweep's choices or tasks only
    config, node = compose(single), composed_hydra(single)
    if flags.multirun or node.mode == RunMode.MULTIRUN:
        if "RANK" in os.environ:
            raise ConfigError(
                f"a sweep starts its own workers; {started_as_rank(f'{program()} {shlex.join(arguments)}')}"
            )
        return None
    if any(override.is_sweep_override() for override in overrides):
        compose(flags.overrides)  # refuses the several values of an override
    if flags.package is not None and plain(node if flags.cfg == "hydra" else config, flags.package) is None:
        known = ", ".join(key for key in map(str, config) if OmegaConf.is_config(plain(config, key)))
        raise ConfigError(f"--package={shortened(flags.package)}: unknown key; choose one of {known}")
    if flags.cfg or flags.info:
        return None
    _check_not_of_sweep(overrides)
    _check_without_torch(config)
    from gradwire.harness.config.resources import check_disk
    from gradwire.harness.config.validate import check_read, validate_any

    if not task_of(config).trains:
        if "RANK" in os.environ:
            command = f"{program()} {shlex.join(arguments)}"
            raise ConfigError(f"task={config.task.name} runs in one process; {started_as_rank(command)}")
        for note in check_read(config, overrides):
            print(note, file=sys.stderr)
    checked = validate_any(config)
    asked = node.run.dir
    rank_0 = os.environ.get("RANK", "0") == "0"
    if isinstance(checked, RunConfig) and checked.task.name == "train" and rank_0:
        tight = check_disk(checked, run_directory(checked, None if asked == "." else asked))
        if tight is not None:
            print(tight, file=sys.stderr)
    if asked != "." and rank_0:  # Hydra makes it next, and would show a traceback
        refused_as_config_error(make_directory, Path(asked))
    return checked


def _check_without_torch(config: DictConfig) -> None:
    """Runs the checks that do not need PyTorch, whose import takes seconds; `validate_any` repeats them
    all.
    """
    found = settings_of(config)
    if isinstance(found, RunConfig):
        refused_as_config_error(check_model, found.model)
        check(GIVEN, found)


def _sweeps_here(flags: argparse.Namespace) -> bool:
    """True if `--multirun` uses the project's own sweeper, the default."""
    return bool(flags.multirun) and not any(text.startswith("hydra/sweeper=") for text in flags.overrides)


def _runs_sweep(flags: argparse.Namespace) -> bool:
    """True if a file of `sweeps/` makes the command a sweep, without `--multirun`."""
    if flags.cfg or flags.info or not any(text.startswith("sweeps=") for text in flags.overrides):
        return False
    single = single_lines(parse(flags.overrides))
    return bool(composed_hydra(choices_of(single)).mode == RunMode.MULTIRUN)


def _check_not_of_sweep(overrides: Sequence[Override]) -> None:
    """Refuses keys of sweeps for a single run."""
    for override in overrides:
        if override.key_or_group.startswith("sweep."):
            raise ConfigError(
                f"{shown(override)} has no effect on a single run; add sweeps=<name> or --multirun, or leave "
                "it out"
            )
