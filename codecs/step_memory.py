"""What a codec remembers from step to step, and how a skipped step is taken back."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Collection, Mapping
from typing import TypeVar

Value = TypeVar("Value")


class StepMemory(UserDict[str, Value]):
    """Values by name, of a parameter or (`Layout.key`) a bucket, which a step sets and a skipped one leaves.

    From the first time that a step sets a value until the step ends, the one before is kept beside it. The
    owner calls `end_step` or `skip_step` once a step, and sets values, but never writes into them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, Value | None] = {}

    def __setitem__(self, name: str, value: Value) -> None:
        self._before.setdefault(name, self.data.get(name))
        self.data[name] = value

    def end_step(self) -> None:
        """The step counts: what was there before it is forgotten."""
        self._before.clear()

    def skip_step(self) -> None:
        """The step counts for nothing: what was there before it is there again."""
        self.take_back(list(self._before))

    def take_back(self, names: Collection[str]) -> None:
        """The step counts for nothing for these: what was there before it is there again."""
        for name in self._before.keys() & set(names):
            value = self._before.pop(name)
            if value is None:
                del self.data[name]
            else:
                self.data[name] = value

    def load(self, values: Mapping[str, Value]) -> None:
        """Replace everything by `values`, as they are between two steps."""
        self.data = dict(values)
        self._before.clear()
