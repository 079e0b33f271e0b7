"""The packages that the harness needs besides torch and numpy, and the message when one is missing.

`gradwire` alone is the library: `attach`, every codec, every topology. Their modules import nothing else.
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
"""Modules that come with `gradwire[harness]`, by the name they are imported by."""


class MissingPackages(MetaPathFinder):
    """Answers imports by this package of modules that no other finder has found; it is asked last.

    Imports by other packages, and mere look-ups, are left alone.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns None, or raises ModuleNotFoundError in one line that says what to do."""
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
    """Makes imports of packages that are not installed say how to get them; calling it again changes
    nothing."""
    if not any(isinstance(finder, MissingPackages) for finder in sys.meta_path):
        sys.meta_path.append(MissingPackages())
