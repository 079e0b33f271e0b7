"""The tokenizer: the model's own, or byte-level BPE trained on the training split."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.harness.data.cache import cache_key, cached_folder
from gradwire.harness.data.corpus import hash_value
from gradwire.harness.files.reading import printable
from gradwire.harness.models.foreign import in_a_line
from gradwire.harness.models.settings import END, MASK, PAD, SPECIAL_TOKENS, ModelConfig
from gradwire.harness.models.weights import FOLDER_WAYS_OUT, TOKENIZER_WAYS_OUT, WAYS_OUT, is_offline

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LEAST_VOCABULARY = 256 + len(SPECIAL_TOKENS)
"""Entries for every byte and the special tokens, so that any text can be encoded."""

TRAINING_BYTES = 2**26
"""The largest amount of text (UTF-8 bytes) that a tokenizer is trained on; more would hardly change it."""


def train_bpe(documents: Sequence[str], vocab_size: int) -> str:
    """Trains byte-level BPE of at most `vocab_size` entries; returns a `tokenizers.Tokenizer` as JSON text.

    A pure function of its arguments. Raises ValueError if `vocab_size` is too small for all bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < LEAST_VOCABULARY:
        raise ValueError(f"model.vocab_size={vocab_size}: byte-level BPE needs at least {LEAST_VOCABULARY}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer, length=len(documents))
    text: str = tokenizer.to_str()
    return text


def trained_tokenizer(texts: Iterable[str], vocab_size: int, cache: Path) -> PreTrainedTokenizerFast:
    """Returns BPE trained on the beginning of `texts`, a training split, cached in `cache`."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    documents = _beginning(texts)
    key = cache_key("tokenizer", list(map(hash_value, documents)), vocab_size, tokenizers.__version__)

    def fill(folder: Path) -> None:
        (folder / "tokenizer.json").write_text(train_bpe(documents, vocab_size), encoding="utf-8")

    folder = cached_folder(cache / "tokenizers" / key, fill)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folder / "tokenizer.json"),
        pad_token=PAD,
        bos_token=END,
        eos_token=END,
        mask_token=MASK,
        clean_up_tokenization_spaces=False,
    )


def _beginning(documents: Iterable[str]) -> list[str]:
    """The first documents, up to `TRAINING_BYTES` in total."""
    taken: list[str] = []
    num_bytes = 0
    for document in documents:
        taken.append(document)
        num_bytes += len(document.encode())
        if num_bytes >= TRAINING_BYTES:
            break
    return taken


def own_tokenizer(model: ModelConfig, *, on_disk: bool = False) -> PreTrainedTokenizerFast | None:
    """Returns the tokenizer that comes with the model, or None if one is to be trained on the data.

    Raises ValueError if it is unavailable; with `on_disk`, also if it would have to be downloaded.
    """
    if model.weights == "pretrained" or model.is_folder:
        return pretrained_tokenizer(model, on_disk=on_disk)
    if model.tokenizer is not None:
        return _fast_tokenizer(model.tokenizer, TOKENIZER_WAYS_OUT, on_disk)
    return None


def pretrained_tokenizer(model: ModelConfig, *, on_disk: bool = False) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of the model's weights, or the one given for a folder without its own.

    Raises ValueError if it is unavailable.
    """
    if model.is_folder and model.tokenizer is not None:
        return _fast_tokenizer(model.tokenizer, TOKENIZER_WAYS_OUT, on_disk)
    ways_out = FOLDER_WAYS_OUT if model.is_folder else WAYS_OUT
    return _fast_tokenizer(model.path or str(model.pretrained), ways_out, on_disk)


def _fast_tokenizer(source: str, ways_out: str, on_disk: bool) -> PreTrainedTokenizerFast:
    """Loads the tokenizer of a folder or of a name on the hub."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    place = os.path.expanduser(source)
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": on_disk or is_offline()}
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
    except Exception as error:  # tokenizers raises nothing more special
        reason = printable(in_a_line(error))
        raise ValueError(f"the tokenizer of {source} cannot be loaded ({reason}); {ways_out}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"the tokenizer of {source} has no tokenizer.json; save it as a fast tokenizer")
    separator_id(tokenizer)
    return tokenizer


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Loads a tokenizer saved with `save_pretrained`, whatever model it belongs to."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def separator_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """The token written after every document: end of sequence, or BERT's separator."""
    for token_id in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if isinstance(token_id, int):
            return token_id
    name = tokenizer.name_or_path
    raise ValueError(
        f"the tokenizer {name} has neither an end-of-sequence nor a separator token; use another"
    )
