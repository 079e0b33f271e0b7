"""A communication thread, which drives collectives while the backward pass runs on.

The works of a transport have no callbacks that could start the next hop, so a thread blocks on them. A
process has one thread per bucket in flight. Buckets are assigned to threads in turn by their number, which is
the same on all ranks, so threads never wait for each other in a circle. (A single thread that blocked on two
collectives in turn would, where ranks take different numbers of steps.) Everything between two waits is codec
work and is recorded as such. The time from posting messages to their delivery is recorded as communication.
"""

from __future__ import annotations

import contextlib
import queue
import threading

import torch

from gradwire.harness.comm.transport.captured_task import CapturedTask
from gradwire.harness.comm.transport.channel import CollectiveTask
from gradwire.harness.comm.transport.process import ProcessHandle
from gradwire.harness.runtime.threads import end_at_exit
from gradwire.harness.timing.measure.spans import Recorder


def _new_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream with higher priority than the backward pass, because a bucket's kernels are short and other
    ranks wait for them."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class Turn:
    """A lock under which a process's threads do codec work, one stretch after another, because they share one
    codec.

    On a GPU the stretches are ordered in the same way across streams, so that a stretch may use memory that
    an earlier one has written or freed; stretches on one stream follow each other by themselves. Messages
    travel meanwhile on streams of their own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[torch.cuda.Stream, torch.cuda.Event] | None = None

    def taken(self, stream: torch.cuda.Stream | None) -> TakenTurn:
        """Holds the lock for a block, a stretch of work on this stream if there is one. Gives True if nothing
        comes between the stream's earlier work and the stretch."""
        return TakenTurn(self, stream)

    def begin(self, stream: torch.cuda.Stream | None) -> bool:
        """Takes the lock; see `taken`."""
        self._lock.acquire()
        if stream is None or self._last is None:
            return False
        if self._last[0] is stream:
            return True
        try:
            stream.wait_event(self._last[1])
        except BaseException:
            self._lock.release()
            raise
        return False

    def end(self, stream: torch.cuda.Stream | None) -> None:
        """Notes where the stretch ends on its stream, and gives the lock back; without a stream only the
        latter."""
        try:
            if stream is not None:
                self._last = stream, stream.record_event()
        finally:
            self._lock.release()


class TakenTurn:
    """A context that holds a turn: a class, because a generator takes the host twice as long in each hop."""

    def __init__(self, turn: Turn, stream: torch.cuda.Stream | None) -> None:
        self._turn, self._stream = turn, stream

    def __enter__(self) -> bool:
        return self._turn.begin(self._stream)

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._turn.end(None if failed else self._stream)


Task = CollectiveTask | CapturedTask


class CommunicationThread:
    """Runs submitted tasks one after another; the threads of a process take their turns.

    The first failure ends the thread: it cancels the running and the queued tasks, refuses later ones, and
    stays in `error` with its traceback.
    """

    def __init__(self, recorder: Recorder, device: torch.device, turn: Turn) -> None:
        self.error: BaseException | None = None
        self._turn = turn
        self._recorder = recorder
        self._stream = _new_stream(device)
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="communication", daemon=True)
        self._thread.start()
        end_at_exit(self)

    def submit(self, task: Task) -> None:
        """Queues a task. On CUDA it starts after the work that the calling thread's current stream has been
        given so far."""
        if self._stream is not None:
            task.ready = torch.cuda.current_stream(self._stream.device).record_event()
        with self._lock:
            if self.error is None:
                self._tasks.put(task)
                return
        task.cancel(self.error)

    def close(self) -> None:
        """Finishes the queued tasks and ends the thread."""
        self.ask_to_end()
        self.join()

    def ask_to_end(self) -> None:
        """Asks the thread to end once it has finished the queued tasks."""
        self._tasks.put(None)

    def join(self, seconds: float | None = None) -> None:
        """Waits until the thread has ended, for at most `seconds`."""
        self._thread.join(seconds)

    def _run(self) -> None:
        stream = contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with stream:
            while (task := self._tasks.get()) is not None:
                try:
                    self._drive(task)
                except BaseException as error:  # whatever it is, it must reach the waiting threads
                    self._fail(task, error)
                    return

    def _drive(self, given: Task) -> None:
        if self._stream is not None and given.ready is not None:
            self._stream.wait_event(given.ready)
        task = self._launch(given) if isinstance(given, CapturedTask) else given
        if task is not None:
            self._run_to_end(task)

    def _launch(self, task: CapturedTask) -> CollectiveTask | None:
        """Launches a captured round. A launch needs no lock, because it has its own memory; capturing is
        codec work and takes the lock.

        Returns the task to run instead if the round cannot be captured.
        """
        if not task.is_captured:
            with self._turn.taken(self._stream):
                uncaptured = task.capture()
            if uncaptured is not None:
                return uncaptured
        task.launch()
        with self._turn.taken(None):  # no other thread counts meanwhile
            task.count()
        task.finish()
        return None

    def _run_to_end(self, task: CollectiveTask) -> None:
        recorder, end = self._recorder, None
        while (start := self._advance(task, end)) is not None:
            handle = task.handle
            assert isinstance(handle, ProcessHandle)
            handle.block()
            end = recorder.timestamp()
            if task.recorded:
                recorder.add("comm", handle.posted, end, handle.sent_bytes)
            if task.log is not None:
                task.log.waited(handle.number, start, end)

    def _advance(self, task: CollectiveTask, waited: object) -> object:
        """Does one stretch of codec work under the lock. `waited` is the timestamp of the wait's end, if
        there was one: on a stream the stretch begins there, unless it first waits for another stretch.

        Returns the timestamp of the stretch's end; None once the task has ended.
        """
        with self._turn.taken(self._stream) as follows:
            start = waited if follows and waited is not None else self._recorder.timestamp()
            cpu_start = self._recorder.cpu_time()
            if task.log is not None:
                task.log.resume(start)
            more = task.advance()
            end = self._recorder.timestamp()
            if task.recorded:
                self._recorder.add("codec", start, end)
                self._recorder.worked("codec", cpu_start)
            if task.log is not None and more:
                task.log.suspend(end)
            return end if more else None

    def _fail(self, task: Task, error: BaseException) -> None:
        with self._lock:
            self.error = error
        task.cancel(error)
        while not self._tasks.empty():
            if (queued := self._tasks.get()) is not None:
                queued.cancel(error)
