"""The checkpoint to be scored: its location, its abilities, and its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.harness.files.reading import UnusableFileError, printable
from gradwire.harness.files.structured import read_json, read_yaml
from gradwire.harness.models.described import ENDINGS, Kind, architecture_of, context_of, kind_of
from gradwire.harness.models.families import HEADS
from gradwire.harness.models.foreign import check_folder, check_settings, in_a_line
from gradwire.harness.models.weights import SAFE, TOKENIZER_FILE, folder_named, not_to_be_had
from gradwire.harness.packaged.catalogue import CATALOGUE, folder_of, not_fetched
from gradwire.harness.record.directory import CONFIG, WEIGHTS
from gradwire.harness.record.identity import data_fingerprint
from gradwire.harness.record.runs import load_run, not_finished
from gradwire.harness.record.seal import refuse_links_in

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

REMEDY = "use checkpoint=outputs/<run>, a Hugging Face folder or a name on the hub"

ABOUT: Mapping[Kind, str] = {
    "causal": "is a causal model: it predicts what follows",
    "masked": "is a masked model: it restores hidden tokens and gives no likelihood of an ending",
    "classification": "is a classifier: it gives labels and no likelihood of an ending",
}
"""The abilities of each kind of model, for messages: only causal models can be scored on multiple choice."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that can be loaded."""

    asked: str  # as the user gave it
    place: str  # the Hugging Face folder, or the name on the hub
    name: str  # of the run, the folder or the repository
    architecture: str  # of transformers
    context: int | None  # tokens; None where its settings do not say
    trained: Mapping[str, Any] | None  # the configuration of the run; None where no run of ours is known

    @property
    def kind(self) -> Kind:
        found = kind_of(self.architecture)
        assert found is not None, "find_checkpoint refuses others"
        return found

    @property
    def folder(self) -> Path | None:
        """None for a name on the hub."""
        return Path(self.place) if Path(self.place).is_dir() else None

    def digest(self) -> str:
        """Identifies weights, tokenizer and their settings; on the hub only the name."""
        return data_fingerprint(self.folder, every_file=True, whole=True) if self.folder else self.place

    def model(self) -> PreTrainedModel:
        """The model as it was saved, in its own precision, on the CPU.

        Raises UnusableFileError for weights that cannot be loaded.
        """
        import transformers

        auto = getattr(transformers, HEADS[self.kind])
        try:
            found: PreTrainedModel = auto.from_pretrained(
                self.place, dtype="auto", use_safetensors=True, trust_remote_code=False
            )
        # Covers all errors of transformers for arbitrary settings and weights.
        except Exception as error:
            reason = in_a_line(error)
            raise UnusableFileError(
                self.place, f"has weights that cannot be loaded ({reason})", REMEDY
            ) from None
        return found

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The checkpoint's tokenizer. Raises UnusableFileError if it cannot be loaded."""
        from transformers import AutoTokenizer

        try:
            found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                self.place, trust_remote_code=False
            )
        except Exception as error:  # tokenizers raises nothing more special
            reason = in_a_line(error)
            raise UnusableFileError(
                self.place, f"has a tokenizer that cannot be loaded ({reason})", REMEDY
            ) from None
        return found


def find_checkpoint(asked: str) -> Checkpoint:
    """The checkpoint that `checkpoint=` names, or those weights of `task=weights`; raises ValueError in one
    line if it cannot be scored."""
    folder = Path(asked).expanduser()
    if asked in CATALOGUE and not folder.exists():
        reason = not_fetched(asked)
        if reason is not None:
            raise ValueError(f"checkpoint={asked}: {reason}")
        return _of_folder(asked, folder_of(asked), asked, None)
    if folder.name == WEIGHTS and (folder.parent / CONFIG).is_file():
        folder = folder.parent  # a run's weights are still the run's
    if (folder / CONFIG).is_file():
        return _of_run(asked, folder)
    if folder.is_dir() or folder_named(asked):
        return _of_folder(asked, folder, folder.resolve().name, None)
    return _of_hub(asked)


def _of_run(asked: str, folder: Path) -> Checkpoint:
    try:
        task = read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder).get("task") or {}
        if task.get("name", "train") != "train":
            raise ValueError(f"is the directory of task={task['name']}; {REMEDY}")
        refuse_links_in(folder)
        found = load_run(folder)
        if found.status != "done":
            raise ValueError(not_finished(found))
    except ValueError as error:
        raise ValueError(f"checkpoint={asked}: {error}") from None
    return _of_folder(asked, folder / WEIGHTS, folder.resolve().name, found.config)


def _of_folder(asked: str, folder: Path, name: str, trained: Mapping[str, Any] | None) -> Checkpoint:
    where = f"checkpoint={asked}"
    if not folder.is_dir():
        problem = f"has no {WEIGHTS}/ with weights" if trained is not None else "no such folder"
        raise ValueError(f"{where}: {problem}; {REMEDY}")
    if not (folder / "config.json").is_file():
        raise ValueError(f"{where}: has no config.json; {REMEDY}")
    if not any((folder / file).is_file() for file in SAFE):
        raise ValueError(f"{where}: has none of the weights {', '.join(SAFE)}; {REMEDY}")
    if not (folder / TOKENIZER_FILE).is_file():
        raise ValueError(f"{where}: has no {TOKENIZER_FILE}; save the tokenizer next to the weights")
    try:
        check_folder(folder, remedy=REMEDY)
    except UnusableFileError as error:
        raise ValueError(f"{where}: {error}") from None
    config = read_json(folder / "config.json", remedy=REMEDY)
    return Checkpoint(asked, str(folder), name, _architecture(where, config), context_of(config), trained)


def _of_hub(asked: str) -> Checkpoint:
    where = f"checkpoint={asked}"
    for file, one_of in (("config.json", SAFE), (TOKENIZER_FILE, ())):
        reason = not_to_be_had(asked, file, one_of)
        if reason is not None:
            raise ValueError(f"{where}: no such folder, and {file} is {reason}; {REMEDY}")
    from huggingface_hub import hf_hub_download

    path = Path(hf_hub_download(asked, "config.json"))
    config = read_json(path, remedy=REMEDY)
    check_settings(config, path, remedy=REMEDY)
    name = asked.rpartition("/")[2]
    return Checkpoint(asked, asked, name, _architecture(where, config), context_of(config), None)


def _architecture(where: str, config: Mapping[str, Any]) -> str:
    found = architecture_of(config) or "none"
    if kind_of(found) is None:
        known = ", ".join(ENDINGS)
        raise ValueError(f"{where}: its architecture is {printable(found, 60)}; use one that ends in {known}")
    return found
