"""All tasks by name. A new task is one entry here, one module beside this one, one YAML."""

from __future__ import annotations

TASKS: dict[str, str] = {"train": "gradwire.harness.tasks.train"}
"""Task to the module whose `run(config, directory) -> exit code` performs it, imported when asked for."""
