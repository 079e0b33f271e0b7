"""Sweeps run in this process."""

from commands_here import in_this_process, run_py, task

__all__ = ["in_this_process", "run_py", "task"]
