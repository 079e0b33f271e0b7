"""Jobs on pool workers about a synchronizer's state: saving, restoring, detaching, measuring."""

from __future__ import annotations

import copy
import gc
import io
import json
import os
import resource
import time
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import attach_jobs as jobs
import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.harness.library.agreement import Agreement

BEFORE, AFTER = 3, 3
"""Steps before the state is saved, and after it."""

Saved = tuple[bytes, bytes]
"""A model's weights and a synchronizer's state, both as safetensors."""


class Usage(NamedTuple):
    """Objects that Python's collector knows, resident bytes, open descriptors, keys in the group's store."""

    objects: int
    memory: int
    descriptors: int
    keys: int


def undisturbed(
    rank: int, size: int, cases: list[dict[str, Any]], ddp: dict[str, Any], before: int
) -> list[tuple[Saved, bytes]]:
    """The state that each codec saved after `before` steps, and the weights AFTER steps later."""
    found = []
    for options in cases:
        model = jobs.wrapped(**ddp)
        with gradwire.attach(model, **options) as synchronizer:
            jobs.run_steps(model, range(before), rank)
            kept = save(dict(model.module.state_dict())), save(synchronizer.state_dict())
            jobs.run_steps(model, range(before, before + AFTER), rank)
            assert synchronizer.step == before + AFTER
        found.append((kept, jobs.weights(model)))
    return found


def continued(
    rank: int,
    size: int,
    cases: list[dict[str, Any]],
    ddp: dict[str, Any],
    before: int,
    saved: list[list[Saved]],
) -> list[bytes]:
    """The weights after the same steps, in models that have not run a backward pass before."""
    found = []
    for number, options in enumerate(cases):
        weights, state = saved[rank][number]
        model = jobs.wrapped(**ddp)
        model.module.load_state_dict(load(weights))
        with gradwire.attach(model, **options) as synchronizer:
            synchronizer.load_state_dict(load(state))
            assert synchronizer.step == before
            again = synchronizer.state_dict()
            assert {key: value.tolist() for key, value in again.items()} == {
                key: value.tolist() for key, value in load(state).items()
            }
            jobs.run_steps(model, range(before, before + AFTER), rank)
        found.append(jobs.weights(model))
    return found


def rolled_back(rank: int, size: int) -> tuple[bytes, bytes]:
    """The weights after steps done twice in one process, from a state saved between."""
    model = jobs.wrapped()
    with gradwire.attach(model, "onebit", ef=True) as synchronizer:
        jobs.run_steps(model, range(2), rank)
        weights = {name: value.clone() for name, value in model.module.state_dict().items()}
        state = synchronizer.state_dict()
        jobs.run_steps(model, range(2, 5), rank)
        first = jobs.weights(model)
        model.module.load_state_dict(weights)
        synchronizer.load_state_dict(state)
        jobs.run_steps(model, range(2, 5), rank)
    return first, jobs.weights(model)


def wrong_states(rank: int, size: int) -> list[str]:
    """load_state_dict()'s errors for states of another model, rank or codec."""
    model = jobs.wrapped()
    with gradwire.attach(model, "onebit", ef=True, timeout_s=20) as synchronizer:
        jobs.run_steps(model, range(3), rank)
        state = synchronizer.state_dict()
        box: list[Any] = [None] * size
        dist.all_gather_object(box, state)
        found = [jobs.said(synchronizer.load_state_dict, given) for given in _wrong(state, box, rank)]
        found.append(jobs.said(synchronizer.load_state_dict, _missing if rank else lambda: state))
        found += [jobs.said(synchronizer.load_state_dict, each) for each in (None, "saved.pt")]
        found += [jobs.said(torch.save, model, io.BytesIO()), jobs.said(copy.deepcopy, model)]
        jobs.run_steps(model, range(3, 4), rank)
        assert synchronizer.step == 4
    frozen = jobs.Net()
    frozen.first.requires_grad_(False)
    others: list[tuple[DistributedDataParallel, dict[str, Any]]] = [
        (jobs.wrapped(), {}),
        (jobs.wrapped(bucket_cap_mb=25), {"ef": True}),
        (jobs.wrapped(nn.Linear(40, 1)), {"ef": True}),
        (jobs.wrapped(frozen), {"ef": True}),
    ]
    for other_model, options in others:
        with gradwire.attach(other_model, "onebit", timeout_s=20, **options) as other:
            found.append(jobs.said(other.load_state_dict, state))
            found.append(jobs.said(other.load_state_dict, state, strict=False))
            jobs.run_steps(other_model, range(1), rank)
    with gradwire.attach(others[0][0], "topk", fraction=0.1, ef=True) as other:
        found.append(jobs.said(other.load_state_dict, state))
    with gradwire.attach(others[0][0], "onebit", ef=True, seed=4) as other:
        found.append(jobs.said(other.load_state_dict, state))
        other.load_state_dict(state, strict=False)
        assert other.step == 3
    found.append(jobs.said(other.state_dict))
    return found


def skipped(rank: int, size: int, options: dict[str, Any]) -> tuple[bool, bool, list[int], list[str]]:
    """Tests that a skipped pass leaves the codec's state as it was and later gradients as those of a model
    without that pass. Returns both answers, the steps counted, and the errors for passes that do not
    exist."""
    model, plain = jobs.wrapped(), jobs.wrapped()
    with (
        gradwire.attach(model, **options) as synchronizer,
        gradwire.attach(plain, **options) as undisturbed,
    ):
        nothing = [jobs.said(synchronizer.skip_step)]
        for each in (model, plain):
            jobs.run_steps(each, range(3), rank)
        before = _of_codec(synchronizer)
        jobs.run_steps(model, range(7, 8), rank, lr=0.0)  # its gradients are not used
        learned = _of_codec(synchronizer, ended=False) != before
        synchronizer.skip_step()
        kept = learned and _of_codec(synchronizer) == before == _of_codec(undisturbed)
        nothing.append(jobs.said(synchronizer.skip_step))
        alike = True
        for step in range(3, 6):
            for each in (model, plain):
                jobs.run_steps(each, range(step, step + 1), rank)
            alike = alike and jobs.gradients(model) == jobs.gradients(plain)
        return kept, alike, [synchronizer.step, undisturbed.step], nothing


def _of_codec(synchronizer: gradwire.Synchronizer, *, ended: bool = True) -> dict[str, bytes]:
    """The codec's tensors in the state: the synchronizer's, or between two steps the codec's own."""
    state = synchronizer.state_dict() if ended else synchronizer.codec.state_dict()
    own = {key.removeprefix("codec/"): value for key, value in state.items()}
    return {key: value.numpy().tobytes() for key, value in own.items() if "/" in key}


def _missing() -> dict[str, Tensor]:
    raise FileNotFoundError("no such file: saved")


def _wrong(state: dict[str, Tensor], box: list[Any], rank: int) -> list[dict[str, Tensor]]:
    later = state | {"step": state["step"] + rank}
    odd = {key: value for key, value in state.items() if key != "step"} if rank else state
    damaged = state | {"about": state["about"][:-7]}
    about = json.loads(bytes(state["about"].tolist()))
    if rank:
        about["settings"] = []
    text = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    odd_settings = state | {"about": text}
    short = state | {"codec/residual/first.bias": torch.zeros(63)}
    norms = state | {key: torch.zeros(4) for key in state if key.startswith("codec/norms/")}
    nonsense = state | {"codec/nonsense": torch.zeros(2)}
    nan = state | {"codec/residual/first.bias": torch.full((64,), torch.nan)}
    return [box[0], later, odd, damaged, nonsense, odd_settings, short, norms, nan]


def detached(rank: int, size: int, ddp: dict[str, Any]) -> tuple[bool, bool, bool, str]:
    """Tests that a detached model has the gradients of plain DDP, step by step, and that it can have a codec
    again, and uses it. Returns the answers, and the error of a synchronizer whose connections alone were
    closed."""
    model = jobs.wrapped(**ddp)
    synchronizer = gradwire.attach(model, "bf16")
    jobs.run_steps(model, range(3), rank)
    synchronizer.detach()
    synchronizer.close()
    assert not synchronizer.attached
    plain = jobs.wrapped(**ddp)
    plain.module.load_state_dict(model.module.state_dict())
    alike = True
    for step in range(3, 6):
        for each in (model, plain):
            jobs.run_steps(each, range(step, step + 1), rank)
        alike = alike and jobs.gradients(model) == jobs.gradients(plain)
    again = gradwire.attach(model, "mxfp4")
    for each in (model, plain):
        jobs.run_steps(each, range(6, 7), rank)
    differs = jobs.gradients(model) != jobs.gradients(plain)
    sent = again.bytes_sent > 0
    again.world.close()
    text = jobs.said(jobs.run_steps, model, range(7, 8), rank)
    again.detach()
    return alike, differs, sent, text


def detached_after_an_error(rank: int, size: int) -> bool:
    """Tests that a model whose synchronization failed trains on as plain DDP does."""
    model, plain = jobs.wrapped(), jobs.wrapped()
    synchronizer = gradwire.attach(model, "halves", shortens=True, timeout_s=3)
    assert "codec returned" in jobs.said(jobs.run_steps, model, range(1), rank)
    synchronizer.detach()
    for each in (model, plain):
        jobs.run_steps(each, range(2), rank)
    return jobs.weights(model) == jobs.weights(plain)


def measured(rank: int, size: int) -> list[float | None]:
    """vNMSE before a measurement, after a measured step, and after a step that was not measured."""
    model = jobs.wrapped()
    with gradwire.attach(model, "mxfp4", timeout_s=20) as synchronizer:
        found = [synchronizer.vnmse]
        jobs.run_steps(model, range(1), rank)  # which settles the buckets
        synchronizer.measure_vnmse()
        sent = synchronizer.bytes_sent
        jobs.run_steps(model, range(1, 2), rank)
        counted = synchronizer.bytes_sent - sent
        found.append(synchronizer.vnmse)
        jobs.run_steps(model, range(2, 3), rank)
        assert synchronizer.bytes_sent - sent == 2 * counted  # measuring is not counted
        found.append(synchronizer.vnmse)
    return found


def tidy(rank: int, size: int, steps: int, parts: int) -> list[Usage]:
    """The objects, memory, descriptors and keys of the process after each of `parts` equal parts of its
    steps."""
    model, found = jobs.wrapped(), []
    with gradwire.attach(model, "mxfp8", ef=True) as synchronizer:
        for part in range(parts):
            jobs.run_steps(model, range(part * steps // parts, (part + 1) * steps // parts), rank)
            for _ in range(10):
                synchronizer.measure_vnmse()
            dist.barrier()
            keys = _get_default_store().num_keys()
            dist.barrier()
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            objects, descriptors = len(gc.get_objects()), len(os.listdir("/proc/self/fd"))
            found.append(Usage(objects, pages * resource.getpagesize(), descriptors, keys))
        assert synchronizer.step == steps
    return found


def checks_when_loaded(rank: int, size: int) -> list[int]:
    """The numbers of hooks before a model's passes: without attach(), attached, after each state that is
    loaded, and detached."""
    model = jobs.wrapped()
    found = [len(model._forward_pre_hooks)]
    with gradwire.attach(model) as synchronizer:
        for step in range(4):
            found.append(len(model._forward_pre_hooks))
            jobs.run_steps(model, range(step, step + 1), rank)
            synchronizer.load_state_dict(synchronizer.state_dict())
    return [*found, len(model._forward_pre_hooks)]


def freed(rank: int, size: int) -> tuple[bool, int, int]:
    """Tests that a model that was never detached is freed with its synchronizer. Returns the answer, and the
    descriptors and threads that ten detached models leave behind."""
    import threading

    gone = True
    for options in ({}, {"codec": "halves", "shortens": True}):  # the second one fails
        model = jobs.wrapped()
        synchronizer = gradwire.attach(model, **options)
        assert jobs.said(jobs.run_steps, model, range(2), rank).startswith("Synch" if options else "nothing")
        seen = weakref.ref(model)
        synchronizer.world.close()
        del model
        gc.collect()
        gone = gone and seen() is None
    for number in range(12):
        if number == 2:
            before = len(os.listdir("/proc/self/fd")), threading.active_count()
        other: DistributedDataParallel = jobs.wrapped()
        with gradwire.attach(other):
            jobs.run_steps(other, range(1), rank)
    gc.collect()
    return gone, len(os.listdir("/proc/self/fd")) - before[0], threading.active_count() - before[1]


def _fails_and_trains_on(rank: int, broken: str) -> tuple[Any, gradwire.Synchronizer, list[str]]:
    """The synchronizer of a model, which the caller no longer holds, and its error after a failure in the
    hook itself or in the codec."""
    model = jobs.wrapped()
    synchronizer = gradwire.attach(model, "halves", shortens=broken == "codec", timeout_s=20)
    if broken == "hook":
        synchronizer._hook.bucket_layouts._names.clear()
    found = [jobs.said(jobs.run_steps, model, range(1), rank) for _ in range(2)]
    found += [jobs.said(synchronizer.raise_error) for _ in range(2)]
    synchronizer.detach()
    jobs.run_steps(model, range(1), rank)
    return weakref.ref(model), synchronizer, found


def failed_and_kept(rank: int, size: int, broken: str) -> tuple[bool, list[str]]:
    """Tests that a failed model is freed while its synchronizer is kept; returns the synchronizer's errors,
    too."""
    model, synchronizer, found = _fails_and_trains_on(rank, broken)
    gc.collect()
    assert not synchronizer.attached
    return model() is None, found


def without_store(rank: int, size: int) -> str:
    """The errors of ranks whose store is no longer served."""
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("localhost", server.port, is_master=False)
    assert dist.group.WORLD is not None
    agreement = Agreement(dist.group.WORLD, 60, "attach()")
    agreement._store = PrefixStore("gradwire", client)
    del server
    return jobs.said(agreement.agree, {})


def skipped_by_some(rank: int, size: int, skipping: list[int], late: bool) -> tuple[str, list[str]]:
    """The errors of skip_step() on the ranks that call it, and those of later passes. If `late`, the other
    ranks begin these passes only after the error."""
    model = jobs.wrapped()
    with gradwire.attach(model, "mxfp4", timeout_s=2) as synchronizer:
        jobs.run_steps(model, range(2), rank)
        called = jobs.said(synchronizer.skip_step) if rank in skipping else "not called"
        while late and rank not in skipping and not synchronizer._agreement.dimensions[0].failures():
            time.sleep(0.05)
        return called, [jobs.said(jobs.run_steps, model, range(2, 4), rank) for _ in range(2)]


def skipped_and_measured(rank: int, size: int) -> str:
    """The errors if one rank skips the step and the other measures the next one."""
    model = jobs.wrapped()
    with gradwire.attach(model, "mxfp4", timeout_s=20) as synchronizer:
        jobs.run_steps(model, range(2), rank)
        return jobs.said(synchronizer.measure_vnmse if rank else synchronizer.skip_step)
