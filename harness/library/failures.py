"""Failures: the error that a rank raises, explained by the failures of the ranks that it has lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist

from gradwire.harness.comm.transport.process import PeerError
from gradwire.harness.library.agreement import Agreement, Failure, Statement


class SynchronizationError(RuntimeError):
    """A bucket could not be synchronized. The text says on which rank, in which step, and why; the
    `__cause__` is what a communication thread or a codec has raised."""


def in_words(error: BaseException) -> str:
    """The text of an error, prefixed with its type unless it is one of this package's errors."""
    words = str(error) or "no reason given"
    return words if isinstance(error, RuntimeError) else f"{type(error).__name__}: {words}"


def origin(peer: int, failures: Mapping[int, Failure]) -> dict[int, Failure]:
    """The failures of other ranks that explain why `peer` was lost.

    These are the failures of ranks whose own work failed. If there are none, it is the failure of the last
    rank in the chain of ranks that have lost each other, which names the rank that stopped responding.
    """
    own = {rank: failure for rank, failure in failures.items() if failure.peer is None}
    if own:
        return own
    chain: list[int] = []
    following: int | None = peer
    while following is not None and following in failures and following not in chain:
        chain.append(following)
        following = failures[following].peer
    return {rank: failures[rank] for rank in chain[-1:]}


def explained(agreement: Agreement, error: BaseException) -> str:
    """The error's own text and, if a rank was lost, the reason that this rank has recorded; records this
    error, too."""
    own = in_words(error)
    if not isinstance(error, PeerError):
        agreement.fail(own)
        return own
    agreement.fail(own, error.peer)
    others = origin(error.peer, agreement.failures())
    reasons = "; ".join(f"rank {rank} had failed: {each.reason}" for rank, each in sorted(others.items()))
    if error.is_late and not any(each.peer is None for each in others.values()):
        own += f"; if a rank was only busy, give timeout_s= more than {agreement.timeout_s:g} s"
    return f"{own} ({reasons})" if reasons else own


def again(failure: SynchronizationError) -> SynchronizationError:
    """Copies of the failure and its causes: raised errors keep tracebacks, whose frames hold the model."""
    anew = SynchronizationError(*failure.args)
    anew.__cause__ = None if failure.__cause__ is None else bare(failure.__cause__)
    return anew


def bare(error: BaseException, *above: BaseException) -> BaseException:
    """Copies of the error and its causes without tracebacks; `above` holds the errors that it is a cause
    of.
    """
    kind = type(error)
    try:
        anew: BaseException = kind.__new__(kind, *error.args)  # __init__ may want other arguments
        anew.args = error.args
        anew.__dict__.update(error.__dict__)
    except Exception:  # a class from outside, which cannot be made so
        anew = RuntimeError(in_words(error))
    if error.__cause__ is not None and not any(error.__cause__ is each for each in (error, *above)):
        anew.__cause__ = bare(error.__cause__, error, *above)
    return anew


class MeshAgreement:
    """Agrees along each dimension of a mesh, one after the other, so that all ranks of the mesh agree. Ranks
    are named by their positions in a dimension."""

    def __init__(self, groups: Sequence[dist.ProcessGroup], timeout_s: float, what: str) -> None:
        self.dimensions = [Agreement(group, timeout_s, what) for group in groups]

    @property
    def rank(self) -> int:
        return self.dimensions[0].rank

    @property
    def timeout_s(self) -> float:
        """Seconds that the ranks wait for one another to agree."""
        return self.dimensions[0].timeout_s

    @timeout_s.setter
    def timeout_s(self, seconds: float) -> None:
        for each in self.dimensions:
            each.timeout_s = seconds

    def refuse(self, reason: str) -> None:
        """Refuses the call on all ranks; called instead of `agree`."""
        for each in self.dimensions:
            each.refuse(reason)

    def agree(
        self, own: Statement, what: str | None = None, last_word: Callable[[], str | None] = lambda: None
    ) -> None:
        """Returns once all ranks have called this with the same statement. Raises the errors of
        `Agreement.agree`."""
        for index, each in enumerate(self.dimensions):
            try:
                each.agree(own, what, last_word)
            except Exception as error:  # the ranks along the other dimensions are waiting
                for other in self.dimensions[index + 1 :]:
                    other.refuse(str(error))
                raise

    def explained(self, dimension: int, error: BaseException) -> str:
        """The text of an error along a dimension; it is recorded along all dimensions."""
        words = explained(self.dimensions[dimension], error)
        for number, each in enumerate(self.dimensions):
            if number != dimension % len(self.dimensions):
                each.fail(words)
        return words
