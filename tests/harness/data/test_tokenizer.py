"""The trained tokenizer: lossless, reproducible, of the requested size."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from gradwire.harness.data.tokenizer import LEAST_VOCABULARY, load_tokenizer, train_bpe, trained_tokenizer
from gradwire.harness.models.settings import END_ID, MASK_ID, PAD_ID, SPECIAL_TOKENS

PRINT_TOKENIZER = (
    "import hashlib, sys\n"
    "from gradwire.harness.data.tokenizer import train_bpe\n"
    "print(hashlib.sha256(train_bpe(sys.argv[1:], 400).encode()).hexdigest())"
)


def test_any_text_survives(data):
    text = "\x00 \n\n  two  spaces\t— 梯度 🙂 \u202e'll <s> [MASK] 'S\r\n"
    assert data.tokenizer.decode(data.tokenizer(text)["input_ids"]) == text


def test_special_tokens_have_the_ids_that_models_are_built_for(data):
    tokenizer = data.tokenizer
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [PAD_ID, END_ID, MASK_ID]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id) == (
        PAD_ID,
        END_ID,
        MASK_ID,
    )


def test_the_vocabulary_is_filled_and_learned_from_the_training_split(corpus, tmp_path):
    tokenizer = trained_tokenizer(corpus.train, 280, tmp_path)
    assert len(tokenizer) == 280
    assert len(tokenizer(corpus.train[0])["input_ids"]) < 0.7 * len(corpus.train[0].encode())
    other_held_out = replace(corpus, held_out=("zzzz " * 1000,))
    assert trained_tokenizer(other_held_out.train, 280, tmp_path).get_vocab() == tokenizer.get_vocab()


def test_it_is_the_same_in_every_process(corpus):
    texts = corpus.train[:20]
    digests = {hashlib.sha256(train_bpe(texts, 400).encode()).hexdigest()}
    for hash_seed, threads in (("1", "1"), ("2", "4")):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": threads}
        command = [sys.executable, "-c", PRINT_TOKENIZER, *texts]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_saved_and_loaded_it_encodes_alike(data, corpus, tmp_path):
    data.tokenizer.save_pretrained(tmp_path)
    assert (
        load_tokenizer(tmp_path)(corpus.train[0])["input_ids"] == data.tokenizer(corpus.train[0])["input_ids"]
    )


def test_a_vocabulary_without_room_for_all_bytes_is_refused():
    with pytest.raises(ValueError, match=rf"model.vocab_size=100: .* at least {LEAST_VOCABULARY}"):
        train_bpe(["text"], 100)
