"""Sharded data parallelism: the worlds agree, nothing is lost, and shards take their share of memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pool import Workers
from recorded import outcome
from safetensors.torch import load_file
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.utils._python_dispatch import TorchDispatchMode
from training_jobs import (
    batch_normed,
    opened,
    tiny_run,
    train_all_virtually,
    train_rank,
    train_rank_batch_normed,
)

from gradwire.codecs.interface import Layout
from gradwire.codecs.registry import codec_classes
from gradwire.codecs.shards import Shard, Stretches
from gradwire.harness.checkpoint.folder import checkpoints
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate, validate_any
from gradwire.harness.parallel.sharded.parallelism import Sharded
from gradwire.harness.parallel.sharded.shards import pieces
from gradwire.harness.record.identity import run_id
from gradwire.harness.record.runs import Run as Record
from gradwire.harness.record.runs import load_run
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.tasks import retime, timeline
from gradwire.harness.trainer.loop import Trainer
from gradwire.harness.trainer.parts import build

SHARDED = "parallel=sharded"
QWD = (SHARDED, "parallel.weights=qwd", "parallel.weight_group=128", "parallel.model_dtype=bfloat16")
OFTEN = ("train.log_every=1", "measure.vnmse_every=1")
SIMULATED = ("cluster=virtual", "network=simulated", "network.rate_mbit=10")
STRIDED = (*QWD, "codec=dynamiq", "cluster.workers=3", "train.accumulation=2", "measure.trace=true")


@contextmanager
def trainer(*overrides: str) -> Iterator[Trainer]:
    """A run's trainer, warmed up."""
    config = tiny_run("cluster=virtual", "measure.vnmse_every=0", *overrides)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        parts = build(config, torch.device("cpu"))
        made = Trainer(config, parts, Path("unused"))
        made.start()
        yield made
        parts.world.close()
    finally:
        dist.destroy_process_group()


def sharded(made: Trainer) -> Sharded:
    found = made.state.parallelism
    assert isinstance(found, Sharded)
    return found


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sharded") / "virtual"
    train_all_virtually(tiny_run(*STRIDED, *OFTEN, *SIMULATED), str(directory))
    return directory


def test_real_equals_virtual_and_resumed_equals_undisturbed(
    virtual: Path, tmp_path: Path, workers: Workers
) -> None:
    """Shards of DynamiQ are not consecutive; hashes of the model are compared after every step."""
    config, run, directory = tiny_run(*STRIDED, *OFTEN), workers(3), tmp_path / "real"
    assert run(train_rank, config, str(directory), None, 2) == [False] * 3
    assert run(train_rank, config, str(directory), opened(config, directory)) == [True] * 3
    assert load_run(directory).done.resumed_after == [2]
    assert outcome(directory) == outcome(virtual)
    errors = [[row[key] for key in ERRORS] for row in load_run(directory).steps]
    assert errors == [[row[key] for key in ERRORS] for row in load_run(virtual).steps]
    assert all(0 < of_weights < 0.003 and 0 <= zeroed < 0.1 for of_weights, zeroed in errors)
    weights = load_file(directory / "checkpoint" / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}


ERRORS = ("weight_error", "zeroed_share")


def test_buffers_that_training_changes_are_of_each_rank(tmp_path: Path, workers: Workers) -> None:
    given = (SHARDED, "parallel.weights=qw", "codec=fp32", "cluster.workers=2", "topology=butterfly")
    workers(2)(train_rank_batch_normed, tiny_run(*given), str(tmp_path / "real"))
    with batch_normed():
        train_all_virtually(tiny_run("cluster=virtual", *given), str(tmp_path / "virtual"))
    assert outcome(tmp_path / "real") == outcome(tmp_path / "virtual")


SGD = ("train.beta1=0", "train.adam_epsilon=1", "train.lr=1.0")
"""Updates in proportion to gradients."""


@pytest.mark.parametrize(
    ("tolerance", "normed", "given"),
    [
        (1e-6, True, (*SGD, "cluster.workers=4", "topology=butterfly")),
        (1e-5, False, ("train.lr=1e-3", "train.accumulation=2", "cluster.workers=3", "train.clip_norm=0.5")),
        (1e-5, False, ("train.lr=1e-3", "cluster.workers=1")),
    ],
)
def test_unquantized_training_is_that_of_data_parallelism(
    tolerance: float, normed: bool, given: tuple[str, ...], tmp_path: Path
) -> None:
    losses = {}
    for name in ("ddp", "sharded"):
        config = tiny_run(
            *("cluster=virtual", "codec=fp32", f"parallel={name}", "train.steps=8", "eval.every=8"), *given
        )
        with batch_normed() if normed else nullcontext():
            train_all_virtually(config, str(tmp_path / name))
        record = load_run(tmp_path / name)
        losses[name] = [row["loss"] for row in record.steps] + [record.evals[-1]["loss"]]
    assert losses["sharded"] == pytest.approx(losses["ddp"], rel=tolerance)
    assert len(set(losses["ddp"])) == 9


class Allocations(TorchDispatchMode):
    """The most bytes of a tensor that is made while this is active."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **kwargs or {})
        for tensor in found if isinstance(found, list | tuple) else [found]:
            if isinstance(tensor, Tensor) and not tensor._is_view():
                self.largest = max(self.largest, tensor.nbytes)
        return found


@pytest.mark.parametrize("main", ["algorithm2", "algorithm4"])
def test_a_rank_keeps_its_share(main: str) -> None:
    """Main weights and moments; and gathering differences makes no further buffer of the model's size."""
    size = 4
    one_bucket = ("parallel.bucket_cap_mb=64", f"cluster.workers={size}", "codec=fp32", "train.lr=1e-3")
    with trainer(*QWD, *one_bucket, f"parallel.main={main}", "measure.check_hashes=false") as made:
        own = sharded(made)
        numel = sum(bucket.weights.numel() for bucket in own._buckets)
        gather, found = own._gather_weights, Allocations()

        async def watched(rank_step: Any) -> None:
            with found:
                await gather(rank_step)

        own._gather_weights = watched  # type: ignore[method-assign]
        assert made.advance(0, 2)
        assert 0 < found.largest <= 4 * (numel / size + 64)
        shares = [state_bytes(optimizer, own._buckets) for optimizer in own._optimizers.values()]
        kept = 3 if main == "algorithm2" else 2
        assert all(share <= 4 * kept * (numel / size + 64) for share in shares)
        assert sum(shares) == 4 * kept * numel


def state_bytes(optimizer: Any, buckets: Any) -> int:
    """The bytes of an optimizer's storages: moments, and main weights unless they lie in the buckets."""
    states = optimizer._optimizer.state.values()
    tensors = [*optimizer.shards, *(state[field] for state in states for field in ("exp_avg", "exp_avg_sq"))]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    for bucket in buckets:
        storages.pop(bucket.gradient.untyped_storage().data_ptr(), None)
    return sum(storages.values())


def read_from(parts: dict[str, dict[str, Tensor]]) -> Any:
    return lambda name: parts.get(name, {})


def copied(parts: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """A copy of the state, as a checkpoint keeps it while training continues."""
    return {name: {key: value.detach().clone() for key, value in own.items()} for name, own in parts.items()}


def by_parameter(parts: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """The main weights and moments of all ranks, parameter by parameter."""
    found = dict[str, Tensor]()
    for name, tensors in parts.items():
        for key, value in tensors.items() if name.startswith("shard-rank") else ():
            if "/" in key:
                (field, _, rest), numbers = key.partition("/"), key.rpartition("/")[2]
                place = f"{field} {rest.rpartition('/')[0]}"
                run = Stretches(*map(int, numbers.split(":")))
                whole = found.setdefault(place, torch.zeros(1 << 15))
                run.stretches(whole).copy_(value.view(run.count, run.length))
    return found


def test_checkpoints_pass_between_numbers_of_ranks_without_a_loss() -> None:
    """4 ranks, 2, 3 and 4 again; model, main weights and moments are the same bit for bit."""
    with trainer(*QWD, "codec=dynamiq", "cluster.workers=4", "train.lr=1e-3") as made:
        assert made.advance(0, 2)
        parts = copied(sharded(made).state_dict())
    first, begun = by_parameter(parts), parts
    assert len(parts) == 9 and all(bool(value.any()) for value in first.values())
    for size in (2, 3, 4):
        with trainer(*QWD, "codec=dynamiq", f"cluster.workers={size}", "train.lr=1e-3") as made:
            sharded(made).load_state_dict(read_from(parts))
            parts = copied(sharded(made).state_dict())
            again = by_parameter(parts)
            assert again.keys() == first.keys()
            assert all(torch.equal(again[key], value) for key, value in first.items())
            if size == 3:  # and training continues from there
                assert made.advance(2, 3)
    for name, tensors in begun.items():
        assert tensors.keys() == parts[name].keys()
        assert all(torch.equal(parts[name][key], value) for key, value in tensors.items())


def test_a_run_resumes_with_another_number_of_workers(tmp_path: Path) -> None:
    given = (SHARDED, "cluster=virtual", "codec=fp32", "train.log_every=1", "measure.spans=false")
    train_all_virtually(tiny_run(*given, "cluster.workers=4"), str(tmp_path / "four"), 2)
    (checkpoint,) = checkpoints(tmp_path / "four")
    begun = f"train.start_from={checkpoint}"
    config = tiny_run(*given, "cluster.workers=2", begun)
    assert run_id(config) != run_id(tiny_run(*given, "cluster.workers=2"))
    train_all_virtually(config, str(tmp_path / "two"), 1)
    train_all_virtually(config, str(tmp_path / "two"))
    steps = load_run(tmp_path / "two").steps
    assert [row["step"] for row in steps] == [2, 3]
    for more, error in (
        (["cluster.workers=4", begun], "train.start_from=.* needs parallel=sharded"),
        ([SHARDED, begun, "train.steps=2"], "is of step 2, and train.steps=2 ends no later"),
        ([SHARDED, f"train.start_from={tmp_path}/none"], "no such folder; use outputs"),
    ):
        with pytest.raises(ConfigError, match=error):
            tiny_run("cluster=virtual", "codec=fp32", *more)


def test_a_checkpoint_of_codecs_that_remember_stays_with_its_ranks() -> None:
    feedback = (SHARDED, "codec=tfp", "codec.ef=true", "train.steps=2")
    with trainer(*feedback, "cluster.workers=2") as made:
        assert made.advance(0, 1)
        parts = sharded(made).state_dict()
    with trainer(*feedback, "cluster.workers=3") as made:
        with pytest.raises(
            ValueError, match="2 ranks whose codecs have their own state.* use cluster.workers=2"
        ):
            sharded(made).load_state_dict(read_from(parts))
        del parts["shard-rank1"]
        with pytest.raises(ValueError, match="another model: it lacks some weights of rank"):
            sharded(made).load_state_dict(read_from(parts))


def test_a_skipped_step_changes_nothing() -> None:
    with trainer(SHARDED, "parallel.weights=qwd", "cluster.workers=2", "codec=fp32") as made:
        own = sharded(made)
        before = copied(own.state_dict())
        parameter = next(iter(own._parameters.values()))
        hook = parameter.register_hook(lambda gradient: gradient * torch.inf)
        outcome = own.step(0, made.batches.of_step(0), 1e-3, measured=False)
        hook.remove()
        assert outcome.skipped
        after = own.state_dict()
        assert all(torch.equal(value, after[part][k]) for part in before for k, value in before[part].items())
        assert not own.step(1, made.batches.of_step(1), 1e-3, measured=False).skipped


def test_quantized_weights_without_main_weights_are_a_state_of_their_own() -> None:
    """Algorithm 4 begins an update with the model: with qW that is the in-place w ← Q(w − ηg)."""
    given = (SHARDED, "parallel.weights=qw", "cluster.workers=2", "codec=fp32", "train.lr=1e-3")
    models = {}
    for main in ("algorithm2", "algorithm4"):
        with trainer(*given, f"parallel.main={main}") as made:
            assert made.advance(0, 3)
            own = sharded(made)
            models[main] = torch.cat([bucket.weights for bucket in own._buckets])
            assert own._has_main == (main == "algorithm2")
            assert any(key.startswith("main/") for key in own.state_dict()["shard-rank0"]) == own._has_main
    assert not torch.equal(models["algorithm2"], models["algorithm4"])


def at_network(run: Path, directory: Path, rate_mbit: float) -> Record:
    config = validate_any(compose(["task=retime", f"run={run}", f"network.rate_mbit={rate_mbit}"]))
    assert retime.run(config, directory) == 0
    return load_run(directory)


def test_its_trace_is_retimed_and_drawn(virtual: Path, tmp_path: Path) -> None:
    before, after = load_run(virtual), at_network(virtual, tmp_path / "retimed", 10)
    assert after.done.train_time_s == pytest.approx(before.done.train_time_s, rel=1e-4)
    assert before.done.bytes_by_phase["weights"] > 0
    config = validate_any(compose(["task=timeline", f"run={virtual}", "timeline.step=3"]))
    assert timeline.run(config) == 0
    events = json.loads((virtual / "timeline" / "step3.json").read_text())["traceEvents"]
    assert {"norm", "update", "weights"} <= {event["name"] for event in events}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["parallel.main=algorithm4"], "parallel.main=algorithm4 .* parallel.weights=exact are not; use"),
        (["codec=powersgd"], "codec=powersgd has no scatter, .* choose one of fp32, bf16, dynamiq"),
        (["codec=topk"], "codec=topk has no scatter, .* or use parallel=ddp"),
        (
            ["topology=broadcast"],
            "topology=broadcast computes no partial sums .* choose one of ring, butterfly",
        ),
        (["parallel.weight_bits=8"], "parallel.weight_bits=8 has no effect with parallel.weights=exact"),
        (["parallel.weight_group=96"], "parallel.weight_group=96.* 32, 64, 128"),
        (["parallel.static_graph=true"], "static_graph"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as raised:
        validate(compose(["size=tiny", SHARDED, "cluster.workers=4", *given]))
    assert "\n" not in str(raised.value)
    assert {"fp32", "powersgd"} <= set(codec_classes())


def test_pieces_are_the_shard_parameter_by_parameter() -> None:
    layout = Layout(("a", "b", "c"), ((3, 5), (7,), (4, 4)), (0, 15, 22), 38)
    shard = Shard((Stretches(2, 3, 8, 3), Stretches(30, 8)))
    flat = torch.arange(38)
    values = shard.take(flat)
    found = list(pieces(layout, shard))
    assert [piece.place.start for piece in found[1:]] == [piece.place.stop for piece in found[:-1]]
    assert found[-1].place.stop == len(values)
    for piece in found:
        offset = dict(zip(layout.names, layout.offsets, strict=True))[piece.name]
        assert torch.equal(piece.run.stretches(flat[offset:]).reshape(-1), values[piece.place])
