"""Rounds captured in CUDA graphs on a GPU: the bytes that rounds have there and on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captured_rounds import CASES, STATEFUL, Rounds, assert_launches_keep_state

from gradwire.codecs.interface import Layout
from gradwire.codecs.native.choice import available_kernels, using_kernels
from gradwire.harness.comm.transport.graph import CudaGraph

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif("cuda" not in available_kernels(), reason="the kernels for CUDA are not built"),
]


@pytest.mark.parametrize("numel", [3000, 3_000_000])
@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_launches_give_the_bytes_of_each_step(
    name: str, options: dict[str, Any], topology: str, numel: int
) -> None:
    """All ranks in one graph: what lies between them are copies. Steps that launch nothing go between."""
    device = torch.device("cuda", torch.cuda.current_device())
    stream = torch.cuda.Stream()
    with using_kernels("auto"), torch.cuda.stream(stream):
        rounds = Rounds(name, options, 3, topology, numel, device)
        on_cpu = Rounds(name, options, 3, topology, numel, torch.device("cpu"))
        assert rounds.codecs[0].refuses_capture(rounds.layout) is None
        captured = rounds.captured(CudaGraph())
        for step in (2, 5, 3):
            for own in (rounds, on_cpu):
                own.fill(step)
            rounds.run(step)
            captured.launch(rounds.key(step))
            expected = on_cpu.run(step, rounds.copies())
            for mean, wanted in zip(captured.result, expected, strict=True):
                assert torch.equal(mean.cpu().view(torch.int32), wanted.view(torch.int32))


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize(("name", "options", "layout"), STATEFUL)
def test_launches_keep_state_as_steps_do(
    name: str, options: dict[str, Any], layout: Layout | None, topology: str
) -> None:
    """Residuals, norms, μ and its counts: those of rounds that run on this GPU step by step."""
    device = torch.device("cuda", torch.cuda.current_device())
    with using_kernels("auto"), torch.cuda.stream(torch.cuda.Stream()):
        rounds, plain = (Rounds(name, options, 3, topology, 3000, device, layout) for _ in range(2))
        assert rounds.codecs[0].refuses_capture(rounds.layout) is None
        assert_launches_keep_state(rounds, plain, CudaGraph())


def test_a_capture_that_reads_back_is_refused_and_leaves_the_device_usable() -> None:
    x = torch.ones(1000, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        with pytest.raises(RuntimeError):
            CudaGraph().capture(lambda: print(x.sum().item()))
        graph, doubled = CudaGraph(), list[torch.Tensor]()
        graph.capture(lambda: doubled.append(x * 2))
        graph.launch()
        assert float(doubled[0].sum()) == 2000


def test_a_capture_does_not_wait_for_what_else_runs() -> None:
    """Work under way could be a launch that waits for a rank which waits for this one's launch."""
    x, busy = torch.ones(1000, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(4_000_000_000)
        slept = busy.record_event()
    graph, doubled = CudaGraph(), list[torch.Tensor]()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture(lambda: doubled.append(x * 2))
        assert not slept.query()
        graph.launch()
    torch.cuda.synchronize()
    assert float(doubled[0].sum()) == 2000
