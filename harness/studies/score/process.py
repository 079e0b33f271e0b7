"""Process-wide state that scoring changes and restores: random states, threads, and libraries' output."""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from threading import RLock

import numpy as np
import torch
from tqdm import tqdm

LIBRARIES = ("lm_eval", "datasets", "transformers")


@contextmanager
def as_if_alone(threads: int) -> Iterator[None]:
    """Restores the process's state after scoring in this block.

    PyTorch uses `threads` CPU threads, because other numbers would change the last bits.
    """
    with ExitStack() as changes:
        for change in (_random_states_kept(), _environment_kept(), _threads(threads), _quiet()):
            changes.enter_context(change)
        yield


@contextmanager
def _random_states_kept() -> Iterator[None]:
    """Restores the global random generators, which lm-eval and its dependencies use and seed."""
    python, numpy, on_cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    on_gpus = torch.cuda.get_rng_state_all() if in_use else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(on_cpu)
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Restores the environment: lm-eval sets variables for the hub's downloads on import, which processes
    started later would inherit."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the libraries' warnings, which are about intended settings, and their progress bars.

    The bars would create a semaphore shared between processes, which outlives a killed process.
    """
    tqdm.set_lock(RLock())
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
