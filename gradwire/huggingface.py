"""Compressed synchronization in transformers' Trainer, by a callback; needs transformers.

trainer = Trainer(model, args, train_dataset=dataset)
trainer.add_callback(SynchronizationCallback(trainer, codec="dynamiq", bits=4))
trainer.train()
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gradwire.harness.files.writing import save_tensors
from gradwire.harness.library.attach import attach
from gradwire.harness.library.synchronizer import Synchronizer

TRAINER_STEP = "trainer_step"
"""The key of the trainer's step in a file: the codec's own count may be another, as after `start_fresh`."""


class SynchronizationCallback(TrainerCallback):
    """Attaches a codec when training begins, saves its state in every checkpoint, detaches at the end.

    Takes the arguments of `gradwire.attach` after the trainer. A resumed run loads the state from the
    checkpoint that `train(resume_from_checkpoint=…)` resumes, or from `resume_from` if that is given. Raises
    ValueError on every rank if one has no state there, or that of another step, unless `start_fresh` is set.
    A step that the optimizer skips, as fp16's gradient scaler makes it do, leaves the codec's state as
    it was.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        resume_from: str | os.PathLike[str] | None = None,
        start_fresh: bool = False,
        **attach_options: Any,
    ) -> None:
        self._trainer, self._options = trainer, attach_options
        self._resume_from, self._start_fresh = resume_from, start_fresh
        self._resumed: str | os.PathLike[str] | None = None
        """The checkpoint that the training resumes."""
        whole: Any = trainer
        whole._inner_training_loop = self._watched(whole._inner_training_loop)
        self.synchronizer: Synchronizer | None = None
        """The synchronizer that `attach` returned; None before training. Its figures stay after the end."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.synchronizer is not None:  # of a training that ended by an error
            self.synchronizer.detach()
        wrapped: Any = self._trainer.model_wrapped  # DDP's, or refused
        self.synchronizer = attach(wrapped, **self._options)
        if self._resumed is not None and not self._start_fresh:
            folder = Path(self._resume_from or self._resumed)
            try:
                self.synchronizer.load_state_dict(partial(_read, folder, state.global_step))
            except BaseException:
                self.synchronizer.detach()
                raise

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.synchronizer is not None and self._trainer.accelerator.optimizer_step_was_skipped:
            self.synchronizer.skip_step()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.synchronizer is None or not self.synchronizer.attached:
            return
        path = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / _file_name()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".partial")
        save_tensors(
            unfinished, {**self.synchronizer.state_dict(), TRAINER_STEP: torch.tensor(state.global_step)}
        )
        os.replace(unfinished, path)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.synchronizer is not None:
            self.synchronizer.detach()

    def _watched(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        """The trainer's loop, the only one with the checkpoint that it resumes as an argument: the trainer's
        state and arguments may name others."""

        @wraps(loop)
        def watched(*given: Any, **named: Any) -> Any:
            arguments = inspect.signature(loop).bind(*given, **named).arguments
            self._resumed = arguments.get("resume_from_checkpoint")
            return loop(*given, **named)

        return watched


def _read(folder: Path, step: int) -> Any:
    """This rank's state in a checkpoint of the trainer's step number `step`. Raises ValueError."""
    if not (folder / _file_name()).is_file():
        raise ValueError(
            f"{folder} has no {_file_name()}: give the callback resume_from=<checkpoint>, or "
            "start_fresh=True to continue without the codec's state"
        )
    found = load_file(folder / _file_name())
    saved = int(found.pop(TRAINER_STEP, torch.tensor(step)))  # files of version 0.1.0 have none
    if saved != step:
        raise ValueError(
            f"{folder / _file_name()} was saved at step {saved}, the trainer resumes at step {step}; leave "
            "resume_from out, or give it the checkpoint of that step"
        )
    return found


def _file_name() -> str:
    return f"gradwire-rank{dist.get_rank()}.safetensors"
