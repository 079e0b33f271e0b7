"""Preparation of data: from settings to tokens on disk."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.harness.data.cache import cache_folder, cache_key, cached_folder
from gradwire.harness.data.chat import (
    ChatFormat,
    chosen_template,
    make_chat_format,
    plain_chat,
    without_marks,
)
from gradwire.harness.data.corpus import DataSource
from gradwire.harness.data.embedded import (
    STRIDES,
    EmbeddedCorpus,
    EmbeddedImages,
    EmbeddedQuestions,
    EmbeddedSentences,
)
from gradwire.harness.data.example_rows import write_examples
from gradwire.harness.data.example_sources import MMLU, ExampleShape, FileExamples, HubExamples, glue_shape
from gradwire.harness.data.examples import as_text
from gradwire.harness.data.formats import format_of
from gradwire.harness.data.hub import HubCorpus, repository_available
from gradwire.harness.data.image_files import FileImages, HubImages
from gradwire.harness.data.images import read_images, write_images
from gradwire.harness.data.packing import PackingLimits, write_packed
from gradwire.harness.data.settings import WAYS_OUT, DatasetConfig
from gradwire.harness.data.text import TextCorpus
from gradwire.harness.data.token_data import PreparedData, TokenData, read_data
from gradwire.harness.data.tokenizer import own_tokenizer, trained_tokenizer
from gradwire.harness.files.writing import check_room
from gradwire.harness.models.settings import SPECIAL_TOKENS, ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def data_source(dataset: DatasetConfig, chat: ChatFormat = plain_chat) -> DataSource[Any]:
    """The source of a resolved `dataset`: a corpus, examples or images."""
    path = None if dataset.path is None else Path(dataset.path).expanduser()
    train, held_out = dataset.train_split, dataset.held_out_split
    if dataset.name == "embedded":
        text = EmbeddedCorpus(dataset.held_out_fraction)
        embedded: dict[str, DataSource[Any]] = {
            "documents": text,
            "questions": EmbeddedQuestions(text),
            "sentences": EmbeddedSentences(text),
            "images": EmbeddedImages(),
        }
        return embedded[dataset.kind]
    if dataset.kind == "documents":
        if path is None:
            return _repository(dataset, chat)
        return TextCorpus(
            path=path,
            held_out_fraction=dataset.held_out_fraction,
            text_field=dataset.text_field,
            chat=chat,
            streaming=dataset.streaming,
            published_splits=None if held_out is None else (train, held_out),
        )
    assert held_out is not None, "resolve_dataset comes first"
    if dataset.kind == "images":
        if path is None:
            return HubImages(_repository(dataset), dataset.image_field)
        return FileImages(path, train, held_out)
    shape: ExampleShape[Any] = MMLU
    if dataset.kind == "sentences":
        assert dataset.configuration is not None, "resolve_dataset comes first"
        shape = glue_shape(dataset.configuration)
    return (
        HubExamples(_repository(dataset), shape)
        if path is None
        else FileExamples(path, shape, train, held_out)
    )


def labels_of(dataset: DatasetConfig) -> tuple[str, ...]:
    """The names of the labels of a resolved `dataset` of sentences."""
    if dataset.name == "embedded":
        return tuple(STRIDES)
    assert dataset.configuration is not None, "resolve_dataset comes first"
    return glue_shape(dataset.configuration).labels


def _repository(dataset: DatasetConfig, chat: ChatFormat = plain_chat) -> HubCorpus:
    assert dataset.hub is not None, "resolve_dataset comes first"
    return HubCorpus(
        name=dataset.name,
        hub=dataset.hub,
        configuration=dataset.configuration,
        revision=dataset.revision,
        files=dataset.files,
        train_split=dataset.train_split,
        held_out_split=dataset.held_out_split,
        streaming=dataset.streaming,
        text_field=dataset.text_field,
        held_out_fraction=dataset.held_out_fraction,
        chat=chat,
    )


def prepare_data(dataset: DatasetConfig, model: ModelConfig, cache: Path | None = None) -> TokenData:
    """Returns the tokens of a resolved `dataset` for `model`, from `cache` if they were made before.

    See `prepared_folder`, which holds them.
    """
    return read_data(prepared_folder(dataset, model, cache), dataset.mask_probability)


def read_prepared(folder: Path, dataset: DatasetConfig) -> PreparedData:
    """The contents of the folder that `prepared_folder` returned for a resolved `dataset`."""
    if dataset.kind == "images":
        return read_images(folder, augment=dataset.augment != "none")
    return read_data(folder, dataset.mask_probability)


def prepared_folder(
    dataset: DatasetConfig, model: ModelConfig, cache: Path | None = None, *, verified: bool = False
) -> Path:
    """Returns the folder with the tokens of a resolved `dataset` for `model`; makes it if it is missing.

    `cache` defaults to `cache_folder()`. Any number of processes may call this at once: one prepares, the
    others wait. Existing data is compared with its digests, unless it has been `verified` for this run, and
    is prepared again if it is damaged. Raises ValueError, in one line, if the data cannot be used.
    """
    cache = cache or cache_folder()
    if dataset.kind == "images":
        return _prepared_images(dataset, cache, verified)
    own = own_tokenizer(model)

    def fill(folder: Path) -> None:
        length, most = dataset.sequence_length, dataset.max_held_out_sequences
        assert length is not None, "resolve_dataset comes first"
        _check_room(dataset, folder)
        if dataset.kind == "documents":
            chat = make_chat_format(dataset.chat_format, own, loss_on=dataset.loss_on)
            corpus = data_source(dataset, chat).load()
            texts = map(without_marks, corpus.train)
            tokenizer = own or trained_tokenizer(texts, model.vocab_size, cache)
            limits, marked = PackingLimits(most, dataset.max_train_tokens), dataset.loss_on != "all"
            write_packed(folder, corpus, tokenizer, length, limits, marked=marked)
        else:
            examples = data_source(dataset).load()
            tokenizer = own or trained_tokenizer(map(as_text, examples.train), model.vocab_size, cache)
            write_examples(folder, examples, tokenizer, length, most, dataset.max_train_tokens)

    return cached_folder(_packed_folder(dataset, model, cache, own), fill, verified=verified)


TOKEN_BYTES = 2
"""The smallest number of bytes of a token on disk."""

MOST_TEXT_PER_TOKEN, LEAST_TEXT_PER_TOKEN = 16, 2
"""Bytes of text per token, averaged over a corpus: upper and lower bound. Compressed files hold more text."""


def _check_room(dataset: DatasetConfig, folder: Path) -> None:
    """Refuses a user's text if its tokens do not fit on the disk, and warns if they might not."""
    if dataset.path is None:
        return
    place = Path(dataset.path).expanduser()
    files = [place] if place.is_file() else [each for each in place.rglob("*") if format_of(each)]
    text = sum(each.stat().st_size for each in files if each.is_file())
    limit = float("inf") if dataset.max_train_tokens is None else TOKEN_BYTES * dataset.max_train_tokens
    least = min(limit, TOKEN_BYTES * text / MOST_TEXT_PER_TOKEN)
    most = min(limit, TOKEN_BYTES * text / LEAST_TEXT_PER_TOKEN)
    remedy = "set GRADWIRE_CACHE=<folder on another disk>, or dataset.max_train_tokens="
    note = check_room(folder, f"preparing dataset.path={dataset.path}", least, most, remedy)
    if note is not None:
        print(note, file=sys.stderr, flush=True)


def _prepared_images(dataset: DatasetConfig, cache: Path, verified: bool) -> Path:
    size, most = dataset.image_size, dataset.max_held_out_sequences
    assert size is not None, "resolve_dataset comes first"

    def fill(folder: Path) -> None:
        write_images(folder, data_source(dataset).load(), size, most)

    return cached_folder(_images_folder(dataset, cache), fill, verified=verified)


def _images_folder(dataset: DatasetConfig, cache: Path) -> Path:
    """The folder's name, a function of everything that affects the pixels, including Pillow's decoders."""
    source, limits = data_source(dataset), (dataset.image_size, dataset.max_held_out_sequences)
    return cache / "images" / cache_key("images", source.fingerprint(), limits, metadata.version("pillow"))


def is_prepared(dataset: DatasetConfig, model: ModelConfig) -> bool:
    """True if `cache_folder()` contains everything that `prepare_data` needs."""
    cache = cache_folder()
    if dataset.kind == "images":
        return _images_folder(dataset, cache).is_dir()
    if not (cache / "packed").is_dir():  # spares loading a tokenizer
        return False
    try:
        return _packed_folder(dataset, model, cache, own_tokenizer(model, on_disk=True)).is_dir()
    except ValueError:  # there is no tokenizer to do it with
        return False


def dataset_available(dataset: DatasetConfig, model: ModelConfig) -> str | None:
    """Returns None, or one line that says why a resolved `dataset` is unavailable and what to do.

    Checks prepared data and the Hugging Face cache first. Asks the hub (one request of at most five seconds)
    only if neither has the data set, and never in offline mode.
    """
    if dataset.hub is None or Path(dataset.hub).is_dir() or is_prepared(dataset, model):
        return None
    # Files chosen by a pattern add a hash to the configuration's name.
    pattern = f"{dataset.configuration or 'default'}{'-*' if dataset.files else ''}"
    reason = repository_available(dataset.hub, pattern, dataset.revision)
    return reason and f"dataset={dataset.name} ({dataset.hub}): {reason}; {WAYS_OUT}"


def _packed_folder(
    dataset: DatasetConfig, model: ModelConfig, cache: Path, own: PreTrainedTokenizerFast | None
) -> Path:
    """The folder's name, a function of everything that affects the tokens. It is known without reading the
    corpus."""
    key = cache_key(
        "packed",
        data_source(dataset).fingerprint(),
        chosen_template(dataset.chat_format, own),
        dataset.loss_on,
        _tokenizer_key(own, model),
        dataset.sequence_length,
        dataset.max_held_out_sequences,
        dataset.max_train_tokens,
    )
    return cache / "packed" / key


def _tokenizer_key(own: PreTrainedTokenizerFast | None, model: ModelConfig) -> tuple[object, ...]:
    """Everything that determines the tokenizer."""
    decides = own.backend_tokenizer.to_str() if own else (model.vocab_size, SPECIAL_TOKENS)
    return decides, *map(metadata.version, ("tokenizers", "transformers"))  # importing them takes long
