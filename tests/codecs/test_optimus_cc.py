"""Optimus-CC: gradients of hidden states at low rank, lazy error propagation, which stages are compressed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from codec_rounds import MODEL, gradients
from torch import Tensor
from world_steps import run_collectives

from gradwire.codecs.backward import BackwardMessage, CompressesBackward
from gradwire.codecs.interface import Round
from gradwire.codecs.optimus_cc import OptimusCC
from gradwire.codecs.powersgd import PowerSGD
from gradwire.codecs.registry import make_codec
from gradwire.codecs.wrappers.wrapper import innermost
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import Collective
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.pipeline.schedule import ORDERS, in_epilogue

SHAPE = (2, 12, 16)
"""Rows, tokens of each, hidden size."""
MICRO_BATCHES = 6
SIZE_OF_ONE = 1e-3
"""A usual coordinate of a gradient."""
ROUNDING = 1e-5 * SIZE_OF_ONE
"""Some dozens of float32 roundings of them, and of errors a few times as large."""


def messages(
    step: int = 0, shapes: Sequence[tuple[int, int, int]] = (SHAPE,) * MICRO_BATCHES, epilogue: int = 1
) -> list[BackwardMessage]:
    """The messages of a step from stage 1 of 2, the last ones in the epilogue."""
    count = len(shapes)
    return [
        BackwardMessage(step, index, 1, 2, shape, index >= count - epilogue, seed=3)
        for index, shape in enumerate(shapes)
    ]


def gradient(message: BackwardMessage) -> Tensor:
    generator = torch.Generator().manual_seed(100 * message.step + message.micro_batch)
    return SIZE_OF_ONE * torch.randn(message.shape, generator=generator)


def delivered(codec: OptimusCC, message: BackwardMessage, given: Tensor | None = None) -> Tensor:
    """A message as another rank's codec of the same settings decodes it."""
    given = gradient(message) if given is None else given
    before = given.clone()
    sent = codec.encode_backward(given, message)
    assert torch.equal(given.nan_to_num(), before.nan_to_num()), "the gradient is not written to"
    assert sent.dtype == torch.uint8
    assert sent.shape == (codec.backward_bytes(message),)
    receiver = OptimusCC(
        backward=codec.backward,
        backward_rank=codec.backward_rank,
        min_compression_rate=codec.min_compression_rate,
        start_step=codec.start_step,
    )
    return receiver.decode_backward(sent.clone(), message).clone()


def error(codec: OptimusCC) -> Tensor:
    return codec.state_dict()["backward/error/stage1"]


@pytest.mark.parametrize("backward", ["all", "but_epilogue", "epilogue", "none"])
def test_a_steps_messages_and_what_is_left_are_its_gradients(backward: str) -> None:
    """Lazy error propagation loses nothing; an uncompressed message leaves nothing."""
    codec = OptimusCC(backward=backward, backward_rank=3)
    total = torch.zeros(SHAPE, dtype=torch.float64)
    for message in messages():
        lossless = {"all": False, "none": True, "epilogue": not message.in_epilogue}
        known = f"backward/error/{message.link}" in codec.state_dict()
        before = error(codec).clone() if known else torch.zeros(SHAPE)
        found = delivered(codec, message)
        if lossless.get(backward, message.in_epilogue):
            assert torch.equal(found, gradient(message) + before)
            assert not known or not error(codec).any()
        else:
            assert torch.linalg.matrix_rank(found.view(-1, SHAPE[-1]), rtol=1e-4) == 3
            assert 0.3 < float(error(codec).norm() / gradient(message).norm()) < 3
        total += gradient(message).double() - found.double()
    left = error(codec).double() if backward in ("all", "epilogue") else torch.zeros_like(total)
    torch.testing.assert_close(left, total, rtol=0, atol=ROUNDING)


def test_what_is_left_is_sent_in_the_next_step() -> None:
    codec, total = OptimusCC(backward="all", backward_rank=2), torch.zeros(SHAPE, dtype=torch.float64)
    for step in range(3):
        for message in messages(step):
            total += gradient(message).double() - delivered(codec, message).double()
        assert codec.end_step(step) == {}
    torch.testing.assert_close(error(codec).double(), total, rtol=0, atol=ROUNDING)


def test_without_lazy_errors_each_message_stands_for_itself() -> None:
    codec = OptimusCC(backward="all", backward_rank=2, lazy_errors=False)
    for message in messages():
        given = gradient(message)
        lost = given - delivered(codec, message)
        # The rest of a projection is at right angles to it.
        assert abs(float((lost * (given - lost)).sum())) < 1e-5 * float(given.square().sum())
    assert set(codec.state_dict()) == {"backward/q/stage1"}


@pytest.mark.parametrize("method", ["gram_schmidt", "qr"])
def test_a_rank_as_large_as_the_matrix_is_exact(method: str) -> None:
    codec = OptimusCC(backward="all", backward_rank=99, min_compression_rate=0.0, orthogonalization=method)
    for message in messages(shapes=[SHAPE, (1, 5, 16), (3, 1, 16)]):
        assert codec.backward_bytes(message) == 4 * min(message.matrix_shape) * sum(message.matrix_shape)
        torch.testing.assert_close(delivered(codec, message), gradient(message), rtol=1e-4, atol=ROUNDING)


def test_bytes_follow_from_shape_and_settings() -> None:
    codec = OptimusCC(backward_rank=3, start_step=2)
    early, (message, *_, last) = messages(0)[0], messages(2)
    assert codec.backward_bytes(message) == 4 * 3 * (24 + 16)
    assert codec.backward_bytes(last) == codec.backward_bytes(early) == 4 * 24 * 16
    assert OptimusCC(backward_rank=9).backward_bytes(message) == 4 * 9 * (24 + 16)
    assert OptimusCC(backward_rank=10).backward_bytes(message) == 4 * 24 * 16, "factors are larger"
    assert codec.backward_bytes(messages(-1)[0]) == 4 * 3 * (24 + 16), "a warm-up does what a run does"


def test_a_constant_gradient_of_low_rank_is_found() -> None:
    """The iteration continues from message to message: Q stays warm."""
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(24, 2, generator=generator) @ torch.randn(2, 16, generator=generator)
    noisy = low + 0.3 * torch.randn(24, 16, generator=generator)
    best = noisy - noisy.double().svd()[0][:, :2].float() @ (noisy.double().svd()[0][:, :2].float().T @ noisy)
    lost = []
    for warm in (True, False):
        codec = OptimusCC(backward="all", backward_rank=2, lazy_errors=False, warm_start=warm)
        *_, last = (delivered(codec, message, noisy.view(SHAPE)) for message in messages())
        lost.append(float((noisy - last.view(24, 16)).norm() / best.norm()))
    assert lost[0] == pytest.approx(1, abs=1e-3)
    assert lost[1] > lost[0]


def test_micro_batches_of_other_lengths_lose_nothing() -> None:
    """Errors of rows and tokens that a micro-batch lacks wait for one that has them."""
    codec = OptimusCC(backward="all", backward_rank=2)
    shapes = [(2, 12, 16), (2, 7, 16), (1, 14, 16), (2, 12, 16)]
    total = torch.zeros(2, 14, 16, dtype=torch.float64)
    for message in messages(shapes=shapes):
        rows, tokens, _ = message.shape
        total[:rows, :tokens] += gradient(message).double() - delivered(codec, message).double()
    torch.testing.assert_close(error(codec).double(), total, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 3e38])
@pytest.mark.parametrize("backward", ["all", "none"])
def test_what_is_not_finite_is_seen_and_not_remembered(bad: float, backward: str) -> None:
    """3e38 is finite; whether its products overflow depends on the order in which a processor sums."""
    codec = OptimusCC(backward=backward, backward_rank=2)
    first, second, third, *_ = messages()
    delivered(codec, first)
    before = {key: value.clone() for key, value in codec.state_dict().items() if "norms" not in key}
    given = gradient(second)
    given[1, 3] = bad
    found = delivered(codec, second, given)
    if backward == "none":
        assert torch.equal(found.nan_to_num(), given.nan_to_num())
    elif math.isfinite(bad) and found.isfinite().all():
        torch.testing.assert_close(found[1, 3], given[1, 3], rtol=1e-5, atol=0)
        assert codec.state_dict()["backward/error/stage1"].isfinite().all()
    else:
        assert found.isnan().all()
        after = codec.state_dict()
        assert all(torch.equal(after[key], value) for key, value in before.items())
    assert delivered(codec, third).isfinite().all()


def test_a_spike_is_not_sent_again_and_again() -> None:
    codec = OptimusCC(backward="all", backward_rank=2)
    for index, message in enumerate(messages(shapes=[SHAPE] * 9)):
        given = gradient(message)
        if index == 4:
            given[0, 2] = 1e13 * torch.randn(16, generator=torch.Generator().manual_seed(1))
            given[1, 5] = 1e13
            given[1, 6, ::2] = 1e13
        found = delivered(codec, message, given)
        assert (float(found.norm()) > 1) == (index == 4)


def test_a_skipped_step_is_taken_back_and_a_state_goes_on() -> None:
    whole, restored = OptimusCC(backward="all", backward_rank=2), OptimusCC(backward="all", backward_rank=2)

    def run(codec: OptimusCC, step: int) -> list[Tensor]:
        return [delivered(codec, message) for message in messages(step)]

    run(whole, 0)
    whole.end_step(0)
    state = {key: value.clone() for key, value in whole.state_dict().items()}
    assert {key: tuple(value.shape) for key, value in state.items()} == {
        "backward/q/stage1": (2, 16),
        "backward/error/stage1": SHAPE,
        "backward/norms/stage1": (5,),
    }
    run(whole, 1)
    whole.skip_step(1)
    after = whole.state_dict()
    assert after.keys() == state.keys()
    assert all(torch.equal(after[key], value) for key, value in state.items())
    restored.load_state_dict(state)
    for step in (2, 3):
        for one, other in zip(run(whole, step), run(restored, step), strict=True):
            assert torch.equal(one, other)
        whole.end_step(step)
        restored.end_step(step)
    with pytest.raises(ValueError, match="got backward/other/stage1"):
        restored.load_state_dict({"backward/other/stage1": torch.zeros(1)})


def test_the_start_is_a_function_of_seed_and_stage() -> None:
    first = messages()[0]
    found = []
    for stage, seed in ((1, 3), (1, 3), (2, 3), (1, 4)):
        message = BackwardMessage(0, 0, stage, 3, SHAPE, False, seed)
        found.append(delivered(OptimusCC(), message, gradient(first)))
    assert torch.equal(found[0], found[1])
    assert not any(torch.equal(found[0], other) for other in found[2:])


def stage_mean(make: Callable[[], PowerSGD], stage: int = 0, stages: int = 1) -> tuple[Tensor, int]:
    """The mean of a bucket over two replicas of a stage, and the bytes that one sent."""
    world = VirtualWorld(2, Fabric(partial(make_schedule, "ring")), torch.device("cpu"))
    xs = gradients(MODEL, 2)

    def collective(rank: int) -> Collective[Tensor]:
        codec, this_round = make(), Round(0, MODEL, rank, 2, 0, stage=stage, stages=stages)
        return lambda comm: codec.synchronize(xs[rank], this_round, comm)

    found = run_collectives(world, {rank: [collective(rank)] for rank in range(2)})
    assert torch.equal(found[0][0], found[1][0])
    return found[0][0], world.traffic[0].total


@pytest.mark.parametrize(
    ("given", "stages", "compressed"),
    [(None, 1, 1), (None, 2, 1), (None, 3, 2), (None, 4, 3), (None, 8, 6), (2, 4, 2), (4, 4, 4)],
)
def test_the_first_stages_alone_are_compressed(given: int | None, stages: int, compressed: int) -> None:
    of_powersgd = stage_mean(PowerSGD)
    first, second = gradients(MODEL, 2)
    for stage in {0, compressed - 1, compressed, stages - 1} & set(range(stages)):
        mean, sent = stage_mean(partial(OptimusCC, stages=given), stage, stages)
        if stage < compressed:
            assert torch.equal(mean, of_powersgd[0])
            assert sent == of_powersgd[1]
        else:
            assert torch.equal(mean, (first + second) / 2)
            assert sent == 4 * MODEL.numel


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backward_rank": 0}, "codec.backward_rank=0: choose a whole number from 1 to 65536"),
        ({"rank": 0}, "codec.rank=0: choose a whole number from 1 to 65536"),
        ({"stages": 0}, "codec.stages=0: choose a whole number from 1 to 1024, or null"),
        ({"backward": "some"}, "codec.backward=some: choose one of but_epilogue, all, epilogue, none"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as raised:
        OptimusCC(**options)
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_what_it_supports() -> None:
    assert OptimusCC().supports_stages(1) is None
    assert OptimusCC(stages=4, backward="all").supports_stages(4) is None
    assert "exceeds parallel.stages=2" in str(OptimusCC(stages=4).supports_stages(2))
    assert "without a pipeline" in str(OptimusCC(stages=2).supports_stages(1))
    assert "codec.backward=epilogue has no effect" in str(OptimusCC(backward="epilogue").supports_stages(1))
    wrapped = make_codec("optimus_cc", exclude=["*ln*"], stages=3)
    assert wrapped.supports_stages(2) is not None
    assert isinstance(innermost(wrapped), CompressesBackward)
    assert not isinstance(make_codec("powersgd"), CompressesBackward)


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (4, 4), (4, 9), (3, 5)])
def test_the_epilogue(order: str, stages: int, micro_batches: int) -> None:
    """A stage's last passes, as many as there are stages after it; in 1F1B the backward passes that follow
    another one."""
    for stage in range(stages):
        passes = ORDERS[order](stage, stages, micro_batches)
        found = [one for one in range(micro_batches) if in_epilogue(one, stage, stages, micro_batches)]
        assert len(found) == min(micro_batches, stages - 1 - stage)
        if order == "1f1b":
            pairs = zip(passes, passes[1:], strict=False)
            assert found == [b.micro_batch for a, b in pairs if a.direction == b.direction == "backward"]
        else:
            assert found == list(range(micro_batches))[micro_batches - len(found) :]
