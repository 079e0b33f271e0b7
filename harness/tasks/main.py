"""The entry for Hydra: validates a composed configuration, finds its directory, runs its task."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from gradwire.harness.config.run_name import run_directory
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.config.validate import validate_any
from gradwire.harness.launch.processes import is_expected
from gradwire.harness.record.settings import Configuration, RecordedConfig
from gradwire.harness.runtime.errors import is_refusal, one_line, refuse
from gradwire.harness.runtime.interrupts import is_interrupt
from gradwire.harness.runtime.output import declare_run, guard_output, output_was_taken


def run_task(config: DictConfig, checked: Configuration | None = None) -> int:
    """Runs `config.task` and returns its exit code; `checked`, if given, are its settings.

    In a sweep the code is returned and errors are raised, so that the sweep can continue. Otherwise a code
    other than 0 ends the process. An error that the user can fix, found before anything has begun, ends it
    with one line and code 2. An error found later, an error of the disk, and one recorded by a worker,
    including divergence, end it with code 1. HYDRA_FULL_ERROR=1 shows their tracebacks. Ctrl-C (code 130),
    SIGTERM (143) and SIGUSR2 (140) end a sweep, too.
    """
    alone = HydraConfig.get().mode != RunMode.MULTIRUN
    stays = (
        "" if alone else "; the sweep's finished runs stay, and the same command continues with the others"
    )
    guard_output()  # here once more: some launchers start processes of their own
    try:
        code = _perform(validate_any(config) if checked is None else checked)
    except Exception as error:
        if is_interrupt(error):
            refuse(f"interrupted{stays}", code=128 + signal.SIGINT)
        if not alone or not is_expected(error) or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        _let_rank_0_speak()
        refuse(one_line(error), code=2 if is_refusal(error) else 1)
    except KeyboardInterrupt as interrupt:
        _let_the_scheduler_know(interrupt)
        refuse(f"{str(interrupt) or 'interrupted'}{stays}", code=interrupt_code(interrupt))
    if alone and code:
        sys.exit(code)
    return code


def _let_rank_0_speak() -> None:
    """Waits for rank 0 to print the line, because torchrun ends all ranks as soon as one has ended."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(5)


def _let_the_scheduler_know(interrupt: KeyboardInterrupt) -> None:
    """Repeats the signal that has ended the run if another handler was installed before, e.g. submitit's,
    which then requeues the job."""
    from gradwire.harness.launch.stop import Terminated

    if not isinstance(interrupt, Terminated) or interrupt.number == signal.SIGINT:
        return
    if callable(signal.getsignal(interrupt.number)):
        print(f"{interrupt}", file=sys.stderr, flush=True)
        signal.raise_signal(interrupt.number)


def interrupt_code(interrupt: KeyboardInterrupt) -> int:
    """The exit code after Ctrl-C or a signal that asked to stop."""
    from gradwire.harness.launch.stop import Terminated

    return 128 + (interrupt.number if isinstance(interrupt, Terminated) else signal.SIGINT)


def asked_directory() -> Path | None:
    """The directory given by `hydra.run.dir=`, or by the sweep for its cell; None if one is to be chosen."""
    hydra = HydraConfig.get()
    if hydra.mode == RunMode.MULTIRUN:
        return Path(hydra.sweep.dir) / hydra.sweep.subdir
    given = any(override.lstrip("+").startswith("hydra.run.dir=") for override in hydra.overrides.hydra)
    return Path(hydra.run.dir) if given or hydra.run.dir != "." else None


def _perform(config: Configuration) -> int:
    task = TASKS[config.task.name]
    if not isinstance(config, RecordedConfig):
        code = task.run(config)
        return code if output_was_taken() else code or 1  # printing was all that it had to do
    declare_run()
    return task.run(config, run_directory(config, asked_directory()))
