"""The availability of a data set (prepared, cached or on the hub) is known before anything starts."""

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from gradwire.harness.data import prepare
from gradwire.harness.data.prepare import dataset_available, prepare_data
from gradwire.harness.data.settings import DatasetConfig, resolve_dataset
from gradwire.harness.models.settings import ModelConfig, RecipeConfig

MODEL = ModelConfig(vocab_size=300, context=64, recipe=RecipeConfig(sequence_length=16))
ASKED = DatasetConfig(name="some", hub="some/words", sequence_length=16, streaming=True)
WAYS_OUT = ("dataset.path=<its files, or your own text>", "dataset=embedded")


@pytest.fixture(autouse=True)
def empty_caches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))


def test_offline_the_refusal_names_every_way_out(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    told = dataset_available(ASKED, MODEL)
    assert told.startswith(
        "dataset=some (some/words): not in the Hugging Face cache and HF_HUB_OFFLINE is set; "
    )
    assert "\n" not in told and all(way in told for way in WAYS_OUT)


def test_what_needs_no_hub_is_there(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    for asked in (DatasetConfig(name="embedded"), DatasetConfig(path=str(tmp_path / "a.txt"))):
        assert dataset_available(resolve_dataset(asked, MODEL, "tiny", tmp_path), MODEL) is None


def test_prepared_tokens_need_no_hub_any_more(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repository = tmp_path / "some" / "words"
    repository.mkdir(parents=True)
    (repository / "train.jsonl").write_text("\n".join(f'{{"text": "some words {n}"}}' for n in range(400)))
    # Prepared where the repository is, as if it had been the hub's: its files do not count.
    monkeypatch.setattr("gradwire.harness.data.hub.describe_files", lambda files: [])
    prepare_data(ASKED, MODEL)
    repository.rename(tmp_path / "gone")
    assert dataset_available(ASKED, MODEL) is None
    for other in (ModelConfig(vocab_size=301), ModelConfig(weights="pretrained", pretrained="some/model")):
        assert "HF_HUB_OFFLINE" in dataset_available(ASKED, other)
    monkeypatch.setattr(prepare, "write_packed", None)
    prepare_data(ASKED, MODEL)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (None, None),
        (errors.RemoteEntryNotFoundError, None),
        (errors.GatedRepoError, "terms accepted and a token"),
        (errors.RevisionNotFoundError, "no revision abc of it (dataset.revision=)"),
        (errors.RepositoryNotFoundError, "knows no such data set"),
        (httpx.ConnectTimeout, "the hub did not answer (ConnectTimeout)"),
    ],
)
def test_the_hub_is_asked_once_and_for_at_most_five_seconds(kind, reason, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    asked = []

    def answer(url, timeout):
        asked.append((url, timeout))
        if kind is httpx.ConnectTimeout:
            raise kind("timed out")
        if kind is not None:
            raise kind("no", response=httpx.Response(404, request=httpx.Request("HEAD", url)))

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", answer)
    dataset = DatasetConfig(name="some", hub="some/words", revision="abc")
    told = dataset_available(dataset, MODEL)
    assert asked == [("https://huggingface.co/datasets/some/words/resolve/abc/README.md", 5.0)]
    if reason is None:
        assert told is None
    else:
        assert reason in told and "\n" not in told and all(way in told for way in WAYS_OUT)
