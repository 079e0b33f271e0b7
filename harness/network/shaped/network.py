"""Makes, checks, watches and removes the whole network of a run."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from types import TracebackType

from gradwire.harness.network.shaped import diagnose
from gradwire.harness.network.shaped.background import BackgroundProcesses
from gradwire.harness.network.shaped.commands import ShapingError, batch
from gradwire.harness.network.shaped.goodput import measure_goodput
from gradwire.harness.network.shaped.namespace import SETTINGS, Entrance, Namespace, path_of
from gradwire.harness.network.shaped.star import (
    MOST_RANKS,
    UPLINK,
    LinkLimits,
    downlink,
    rank_interfaces,
    shaping,
    switch_interfaces,
)


class ShapedNetwork:
    """`ranks` namespaces on links of these `limits`, joined by a switch, while the `with` block lasts.

    Entering raises ShapingError, one line, if the network cannot be made as configured. Only descriptors of
    this process hold it, so nothing is left when this process and those inside have ended.
    """

    congestion_control = SETTINGS["ipv4/tcp_congestion_control"]

    def __init__(self, ranks: int, limits: LinkLimits) -> None:
        if not 1 <= ranks <= MOST_RANKS:
            raise ShapingError(f"network=shaped takes 1 to {MOST_RANKS} workers, not {ranks}")
        self._ranks, self._limits = ranks, limits
        self._namespaces: list[Namespace] = []
        self._background: BackgroundProcesses | None = None
        self._held = ExitStack()

    def __enter__(self) -> ShapedNetwork:
        try:
            with self._held:
                self._make()
                self._held = self._held.pop_all()
        except OSError as error:
            raise ShapingError(f"network=shaped cannot be made: {error.strerror or error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def _make(self) -> None:
        self._switch = self._new_namespace()
        self._namespaces = [self._new_namespace() for _ in range(self._ranks)]
        self._switch.run(self._make_switch)
        for rank, namespace in enumerate(self._namespaces):
            namespace.run(partial(self._make_rank, rank))
        self._listeners = [
            self._held.enter_context(diagnose.listen(namespace))
            for namespace in (self._switch, *self._namespaces)
        ]
        self._made = diagnose.links(self._switch, self._namespaces)
        wrong = diagnose.troubles(self._made)
        if wrong:
            raise ShapingError("; ".join(f"rank {rank}: {reason}" for rank, reason in wrong.items()))

    def _new_namespace(self) -> Namespace:
        namespace = Namespace()
        self._held.callback(namespace.close)
        return namespace

    def _make_switch(self) -> None:
        batch("ip", switch_interfaces([path_of(namespace) for namespace in self._namespaces]))
        batch("tc", [line for rank in range(self._ranks) for line in shaping(downlink(rank), self._limits)])

    def _make_rank(self, rank: int) -> None:
        batch("ip", rank_interfaces(rank))
        batch("tc", shaping(UPLINK, self._limits))

    def entrance(self, rank: int) -> Entrance:
        """The entrance for the process of a rank, which must enter before it opens a connection."""
        return Entrance(path_of(self._namespaces[rank]), UPLINK)

    def measure_goodput(self) -> float | None:
        """Payload that a stream from rank 0 to rank 1 carries now, in 10⁶ bit/s; None if there is no rank 1.

        Takes half a second. Raises ShapingError if it exceeds the rate.
        """
        if self._ranks < 2:
            return None
        found = measure_goodput(self._namespaces[0], self._namespaces[1], 1)
        if found > self._limits.rate_mbit:
            raise ShapingError(
                f"network.rate_mbit={self._limits.rate_mbit:g}: "
                f"a link carries {found:.0f} Mbit/s all the same"
            )
        return found

    def start_background(self, jobs: int, megabytes: float) -> None:
        """Starts `jobs` background ring all-reduces of `megabytes` MiB over these links; they run until
        stopped."""
        self._background = BackgroundProcesses(self._namespaces, jobs, megabytes)
        self._held.callback(self.stop_background)

    def stop_background(self) -> list[float]:
        """What each job carried over a link, in 10⁶ bit/s; empty if there are none, or one of them failed."""
        background, self._background = self._background, None
        return [] if background is None else background.stop()

    @property
    def sentinels(self) -> list[int]:
        """Descriptors that become readable when `diagnose` may find something."""
        background = [] if self._background is None else self._background.sentinels
        return [*(listener.fileno() for listener in self._listeners), *background]

    def diagnose(self) -> dict[int, str]:
        """What is wrong now, by rank: links that are gone, cut or not shaped, background jobs that have
        ended."""
        for listener in self._listeners:
            diagnose.forget(listener)
        found = diagnose.troubles(diagnose.links(self._switch, self._namespaces), self._made)
        return found or ({} if self._background is None else self._background.diagnose())
