"""`hydra/sweeper=gradwire`: unions of products of settings for each size; finished cells are skipped.

Hydra finds sweepers only in the namespace package `hydra_plugins`. It imports this module whenever it starts,
so everything heavy is imported when a sweep runs.
"""

from __future__ import annotations

import sys
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction


class GradwireSweeper(Sweeper):
    """Plans, runs and compares the cells of `cases` and of the command line's sweeps."""

    launcher: Launcher | None = None

    def __init__(self, cases: Any, common: Any, needs: Any) -> None:
        """Hydra passes `hydra.sweeper`'s fields; the plan reads them from the configuration."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: Any) -> None:
        self.config = config
        self.hydra_context = hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Exits with code 2 if a cell cannot run (before any starts), with 1 if one failed, with 75 if the
        time limit is reached, and after Ctrl-C and signals as a single run does."""
        from gradwire.harness.config.overrides import kept_for_sweep
        from gradwire.harness.launch.processes import is_expected
        from gradwire.harness.launch.stop import stop_requests
        from gradwire.harness.record.directory import make_directory
        from gradwire.harness.runtime.errors import ConfigError, one_line, refuse, refused_as_config_error
        from gradwire.harness.runtime.interrupts import raise_on_interrupt
        from gradwire.harness.sweeps.plan import plan_sweep
        from gradwire.harness.sweeps.run import check_launcher_can, run_sweep
        from gradwire.harness.tasks.main import interrupt_code
        from gradwire.harness.tasks.plan import plan_page

        assert self.launcher is not None
        assert self.config is not None
        # Hydra's own launcher is sequential; passing it one cell per call allows reporting each as it ends.
        launcher = self.config.hydra.runtime.choices["hydra/launcher"]
        sequential = launcher == "basic"
        try:
            with stop_requests(at_once=True):
                plan = plan_sweep(self.config.hydra, kept_for_sweep(arguments))
                if plan.settings.plan:
                    print(plan_page(plan))
                    return
                check_launcher_can(plan, launcher)
                for each in plan.with_needs:
                    refused_as_config_error(make_directory, each.output)
                raise_on_interrupt()
                code = run_sweep(plan, self.launcher.launch, sequential=sequential)
        except ConfigError as error:
            refuse(error)
        except OSError as error:  # as it writes the tables: those of runs have been reported
            if not is_expected(error):
                raise
            refuse(one_line(error), code=1)
        except KeyboardInterrupt as interrupt:
            refuse(str(interrupt) or "interrupted", code=interrupt_code(interrupt))
        if code:
            sys.exit(code)
