"""Ways to train with a codec, on pool workers: the guide's code blocks, accelerate, transformers' Trainer."""

from __future__ import annotations

import os
import tempfile
from types import SimpleNamespace
from typing import Any

import attach_jobs as jobs
import torch
import torch.distributed as dist


def _as_torchrun(rank: int, size: int) -> None:
    """The environment variables that accelerate needs if a process group already exists."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29400", "ACCELERATE_USE_CPU": "true"}
    from accelerate.state import AcceleratorState, GradientState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
    GradientState._reset_state()


def _unset() -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_USE_CPU"):
        os.environ.pop(name, None)


def run_blocks(rank: int, size: int, blocks: list[tuple[int, str]]) -> list[str]:
    """Runs a page's code blocks, each in a namespace of its own with `rank`, `size` and `folder`; returns the
    errors by line."""
    _as_torchrun(rank, size)
    box = [tempfile.mkdtemp()]
    dist.broadcast_object_list(box)
    failures = []
    try:
        for line, code in blocks:
            torch.manual_seed(0)
            names: dict[str, Any] = {
                "rank": rank,
                "size": size,
                "folder": box[0],
                "batches": [jobs.data(rank, step) for step in range(4)],
                "make_model": jobs.Net,
            }
            try:
                exec(compile(code, f"block at line {line}", "exec"), names)
            except Exception as error:
                failures.append(f"line {line}: {type(error).__name__}: {error}")
            torch.compiler.reset()
    finally:
        _unset()
    return failures


def train_with_trainer(
    rank: int, size: int, folder: str, resumed: str | None
) -> tuple[bytes, int, int, bool]:
    """A transformers run of 6 steps with two checkpoints, or its second half from one of another folder.
    Returns the weights, the synchronizer's steps and bytes, and whether the model is plain DDP again."""
    _as_torchrun(rank, size)
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from gradwire.huggingface import SynchronizationCallback

    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (64, 8), generator=torch.Generator().manual_seed(3)).tolist()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    args = TrainingArguments(
        output_dir=folder,
        max_steps=6,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        save_steps=3,
        logging_steps=100,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(model, args, train_dataset=[{"input_ids": row, "labels": row} for row in tokens])
    callback = SynchronizationCallback(trainer, codec="onebit", block=64, ef=True)
    trainer.add_callback(callback)
    try:
        trainer.train(resume_from_checkpoint=resumed)
    finally:
        _unset()
    assert callback.synchronizer is not None
    found = callback.synchronizer
    return jobs.weights(model), found.step, found.bytes_sent, found.attached


class Trainer:
    """The parts of a trainer that the callback uses: its loop, which calls the callback as training
    begins."""

    def __init__(self, folder: str) -> None:
        self.model_wrapped = jobs.wrapped()
        self.accelerator = SimpleNamespace(optimizer_step_was_skipped=False)
        self.args: Any = SimpleNamespace(output_dir=folder, resume_from_checkpoint=None)
        self.state: Any = SimpleNamespace(global_step=0)
        self.control: Any = None

    def _inner_training_loop(self, batch_size: int, resume_from_checkpoint: str | None = None) -> None:
        self.callback.on_train_begin(self.args, self.state, self.control)

    def train(self, resume_from_checkpoint: str | None = None) -> Any:
        self._inner_training_loop(2, resume_from_checkpoint=resume_from_checkpoint)
        return self.callback.synchronizer

    def give(self, **options: Any) -> Trainer:
        from gradwire.huggingface import SynchronizationCallback

        given: Any = self
        self.callback = SynchronizationCallback(given, codec="onebit", ef=True, timeout_s=60, **options)
        return self


def call_back(rank: int, size: int, folder: str) -> tuple[bool, bool]:
    """The callback as a trainer calls it whose gradient scaler skips a step: whether the skipped step changed
    what the codec remembers, and whether one that counts did. Saves checkpoints of steps 2 and 3."""
    trainer = Trainer(folder).give()
    found = trainer.train()
    residuals = []
    for step, skipped in enumerate([False, True, False]):
        jobs.run_steps(trainer.model_wrapped, range(step, step + 1), rank)
        trainer.accelerator.optimizer_step_was_skipped = skipped
        trainer.callback.on_step_end(trainer.args, trainer.state, trainer.control)
        residuals.append({key: value.tolist() for key, value in found.codec.state_dict().items()})
        trainer.state.global_step = step + 1
        trainer.callback.on_save(trainer.args, trainer.state, trainer.control)
    trainer.callback.on_train_end(trainer.args, trainer.state, trainer.control)
    return residuals[0] != residuals[1], residuals[1] != residuals[2]


def resumed(
    rank: int, size: int, folder: str, checkpoint: str | None, step: int, options: dict[str, Any]
) -> tuple[str, int, bool]:
    """The error of a trainer that resumes a checkpoint of this step, the step that the synchronizer has then,
    and whether the model stays attached. `args` names the checkpoint of step 2, which every trainer
    ignores."""
    trainer = Trainer(folder).give(**options)
    trainer.state.global_step = step
    trainer.args.resume_from_checkpoint = f"{folder}/checkpoint-2"
    said = jobs.said(trainer.train, checkpoint)
    found = trainer.callback.synchronizer
    assert found is not None
    attached = found.attached
    found.detach()
    return said, found.step, attached
