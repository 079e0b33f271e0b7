"""From settings to tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..models.config import ModelConfig
from ..models.special_tokens import SPECIAL_TOKENS
from .cache import cache_folder, cache_key, cached_folder
from .config import DatasetConfig
from .corpus import CorpusSource
from .embedded import EmbeddedCorpus
from .packing import TokenData, read_packed, write_packed
from .text import TextCorpus
from .tokenizer import pretrained_tokenizer, trained_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def corpus_source(dataset: DatasetConfig) -> CorpusSource:
    """Where the text of a resolved `dataset` comes from."""
    if dataset.name == "embedded":
        return EmbeddedCorpus(dataset.held_out_fraction)
    assert dataset.name == "text" and dataset.path is not None, "resolve_dataset comes first"
    return TextCorpus(Path(dataset.path).expanduser(), dataset.held_out_fraction, dataset.text_field)


def prepare_data(dataset: DatasetConfig, model: ModelConfig, cache: Path | None = None) -> TokenData:
    """The packed tokens of a resolved `dataset` for `model`, from `cache` if they were made before.

    `cache` defaults to `cache_folder()`. Any number of processes may call this at once: one
    prepares, the others wait. Raises ValueError, in one line, if the text cannot be used.
    """
    assert dataset.sequence_length is not None, "resolve_dataset comes first"
    cache = cache or cache_folder()
    source, length, most = corpus_source(dataset), dataset.sequence_length, dataset.max_held_out_sequences
    own = pretrained_tokenizer(model) if model.weights == "pretrained" else None
    key = cache_key("packed", source.fingerprint(), _tokenizer_key(own, model), length, most)

    def fill(folder: Path) -> None:
        corpus = source.load()
        tokenizer = own or trained_tokenizer(corpus, model.vocab_size, cache)
        write_packed(folder, corpus, tokenizer, length, most)

    return read_packed(cached_folder(cache / "packed" / key, fill), dataset.mask_probability)


def _tokenizer_key(own: PreTrainedTokenizerFast | None, model: ModelConfig) -> tuple[object, ...]:
    """What decides the tokenizer, known without reading the corpus."""
    import tokenizers
    import transformers

    decides = own.backend_tokenizer.to_str() if own else (model.vocab_size, SPECIAL_TOKENS)
    return decides, tokenizers.__version__, transformers.__version__
