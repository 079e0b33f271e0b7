"""Compressed synchronization in transformers' Trainer, by a callback; needs transformers.

trainer = Trainer(model, args, train_dataset=dataset)
trainer.add_callback(SynchronizationCallback(trainer, codec="dynamiq", bits=4))
trainer.train()
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gradwire.harness.files.writing import save_tensors
from gradwire.harness.library.attach import attach
from gradwire.harness.library.synchronizer import Synchronizer


class SynchronizationCallback(TrainerCallback):
    """Attaches a codec when training begins, saves its state in every checkpoint, detaches at the end.

    Takes the arguments of `gradwire.attach` after the trainer. A resumed run loads the state from the
    checkpoint, which is looked for in `resume_from`, in `args.resume_from_checkpoint` and in
    `args.output_dir`. Raises ValueError on every rank if one has no state, unless `start_fresh` is set. A
    step that the optimizer skips, as fp16's gradient scaler makes it do, leaves what the codec remembers as
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
        self.synchronizer: Synchronizer | None = None
        """What `attach` returned; None before training. Its figures stay after the end."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.synchronizer is not None:  # of a training that ended by an error
            self.synchronizer.detach()
        wrapped: Any = self._trainer.model_wrapped  # DDP's, or refused
        self.synchronizer = attach(wrapped, **self._options)
        if state.global_step and not self._start_fresh:
            try:
                self.synchronizer.load_state_dict(partial(self._read, args, state.global_step))
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
        path = _checkpoint(args, state.global_step) / _file_name()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".partial")
        save_tensors(unfinished, self.synchronizer.state_dict())
        os.replace(unfinished, path)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.synchronizer is not None:
            self.synchronizer.detach()

    def _read(self, args: TrainingArguments, step: int) -> Any:
        given = (self._resume_from, args.resume_from_checkpoint)
        folders = [Path(each) for each in given if isinstance(each, str | os.PathLike)]
        for folder in [*folders, _checkpoint(args, step)]:
            if (folder / _file_name()).is_file():
                return load_file(folder / _file_name())
        raise ValueError(
            f"{_checkpoint(args, step)} has no {_file_name()}: give the callback resume_from=<checkpoint>, "
            "or start_fresh=True to go on without what the codec remembered"
        )


def _checkpoint(args: TrainingArguments, step: int) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{step}"


def _file_name() -> str:
    return f"gradwire-rank{dist.get_rank()}.safetensors"
