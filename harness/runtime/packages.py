"""The packages that the harness needs besides torch and numpy, and the message when one is missing.

The plain package `gradwire` is the library: `attach`, all codecs, all topologies. Their modules need only
torch and numpy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

INSTALL = 'pip install "gradwire[harness]"'

HARNESS = frozenset(
    {
        *("accelerate", "datasets", "filelock", "huggingface_hub", "hydra", "lm_eval", "matplotlib"),
        *(
            "omegaconf",
            "psutil",
            "pyarrow",
            "safetensors",
            "tokenizers",
            "tqdm",
            "transformers",
            "wandb",
            "yaml",
        ),
    }
)
"""Modules that are installed with `gradwire[harness]`, by import name."""


class MissingPackages(MetaPathFinder):
    """Handles imports, by this package, of modules that no other finder has found.

    Imports by other packages, and mere look-ups, are not affected.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns None, or raises ModuleNotFoundError with one line that says what to install."""
        if fullname in HARNESS:
            importer = _importer()
            if importer.partition(".")[0] == "gradwire":
                raise ModuleNotFoundError(f"{importer} needs {fullname}: {INSTALL}", name=fullname)
        return None


def _importer() -> str:
    """The name of the module whose import statement is being executed."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _name(frame).startswith(("importlib", "_frozen_importlib")):
        frame = frame.f_back
    return "" if frame is None else _name(frame)


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def say_what_is_missing() -> None:
    """Makes imports of packages that are not installed raise errors that say how to get them; calling it
    again has no effect."""
    if not any(isinstance(finder, MissingPackages) for finder in sys.meta_path):
        sys.meta_path.append(MissingPackages())
