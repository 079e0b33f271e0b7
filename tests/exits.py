"""A script that ends while its threads are at work, in the way that its argument says."""

import sys
import time

import torch

from gradwire.harness.comm.transport.channel import CollectiveTask
from gradwire.harness.comm.transport.pacer import PacedLink, Pacer
from gradwire.harness.comm.transport.thread import CommunicationThread, Turn
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.measure.stopwatch import make_stopwatch

CPU = torch.device("cpu")


async def work() -> None:
    """Stays in C++, where Python cannot end a thread, for half a second."""
    until = time.monotonic() + 0.5
    x = torch.ones(400, 400)
    while time.monotonic() < until:
        torch.matmul(x, x)


threads = [CommunicationThread(Recorder(make_stopwatch(CPU)), CPU, Turn()) for _ in range(2)]
pacer = Pacer(PacedLink(1.0), timeout_s=60)
for thread in threads:
    thread.submit(CollectiveTask(work(), print, print))
time.sleep(0.1)
if sys.argv[1] == "error":
    raise ValueError("the script's own words")
if sys.argv[1] == "exit":
    sys.exit(3)
