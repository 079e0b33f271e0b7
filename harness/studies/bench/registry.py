"""All operations that can be measured, found in the files of `operations`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache

from gradwire.harness.studies.bench import operations as package
from gradwire.harness.studies.bench.operation import Operation


@cache
def all_operations() -> tuple[Operation, ...]:
    """Every operation, by family and in the families' own order."""
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    return tuple(operation for module in modules for operation in module.operations())


def chosen_operations(patterns: Sequence[str]) -> list[Operation]:
    """Those whose names match one of `patterns` (`*`, `?`); ValueError for a pattern that none matches."""
    known = all_operations()
    for pattern in patterns:
        if not any(fnmatchcase(operation.name, pattern) for operation in known):
            families = dict.fromkeys(f"{operation.name.partition('.')[0]}.*" for operation in known)
            raise ValueError(
                f"bench.operations: {pattern} matches nothing; choose from {', '.join(families)}"
            )
    return [
        operation for operation in known if any(fnmatchcase(operation.name, pattern) for pattern in patterns)
    ]
