"""Batches: BERT's masking has its rates and depends on its key alone."""

from dataclasses import replace

import pytest
import torch

from gradwire.harness.data.tokenizer import load_tokenizer
from gradwire.harness.models.settings import END_ID, MASK_ID
from gradwire.harness.objectives.registry import make_objective


def test_causal_labels_are_the_inputs(text_data):
    indices = torch.tensor([3, 0, 3])
    batch = make_objective("causal", text_data).batch(indices, key=(0, 0))
    assert batch.keys() == {"input_ids", "labels"}
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    assert torch.equal(batch["input_ids"], text_data.train[indices].long())
    assert torch.equal(batch["labels"], batch["input_ids"])
    held_out = make_objective("causal", text_data).batch(indices, key=(0, 0), split="held_out")
    assert torch.equal(held_out["input_ids"], text_data.held_out[indices].long())


def _masked(text_data, key, split="train"):
    indices = torch.arange(len(getattr(text_data, split)))
    batch = make_objective("masked", text_data).batch(indices, key=key, split=split)
    return batch["input_ids"], batch["labels"]


def test_fifteen_percent_are_to_be_restored_never_special_ones(text_data):
    original = text_data.train.long()
    inputs, labels = _masked(text_data, (0, 1))
    chosen = labels != -100
    assert torch.equal(labels[chosen], original[chosen])
    assert torch.equal(inputs[~chosen], original[~chosen])
    ordinary = original != END_ID
    assert not (chosen & ~ordinary).any()
    assert chosen.sum(1).tolist() == [round(0.15 * number) for number in ordinary.sum(1).tolist()]


def test_of_these_80_percent_are_masked_10_random_10_kept(text_data):
    draws = [_masked(text_data, (0, step)) for step in range(40)]
    original = text_data.train.long().repeat(40, 1)
    inputs, labels = (torch.cat(part) for part in zip(*draws, strict=True))
    chosen = labels != -100
    number = int(chosen.sum())
    masked = (inputs[chosen] == MASK_ID).sum().item()
    kept = (inputs[chosen] == original[chosen]).sum().item()
    chance = 1 / text_data.vocab_size  # a random token may be the mask or the token itself
    for count, rate in ((masked, 0.8 + 0.1 * chance), (kept, 0.1 + 0.1 * chance)):
        assert abs(count - rate * number) < 5 * (number * rate * (1 - rate)) ** 0.5
    replaced = inputs[chosen][(inputs[chosen] != MASK_ID) & (inputs[chosen] != original[chosen])]
    assert len(replaced.unique()) > 0.9 * text_data.vocab_size
    # Every place is as likely as any other.
    ordinary = (original != END_ID).sum(0).double()
    assert ((chosen.sum(0) / ordinary - 0.15).abs() < 5 * (0.15 * 0.85 / ordinary).sqrt()).all()


def test_masks_depend_on_key_and_sample_only(text_data):
    torch.manual_seed(0)
    inputs, labels = _masked(text_data, (7, 3))
    torch.manual_seed(1)
    alone = make_objective("masked", text_data).batch(torch.tensor([5]), key=(7, 3))
    assert torch.equal(alone["input_ids"][0], inputs[5]) and torch.equal(alone["labels"][0], labels[5])
    assert not torch.equal(_masked(text_data, (7, 4))[1], labels)
    assert not torch.equal(_masked(text_data, (8, 3))[1], labels)


def test_held_out_masks_never_change(text_data):
    first, second = _masked(text_data, (0, 0), "held_out"), _masked(text_data, (1, 99), "held_out")
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert (first[1] != -100).any(dim=1).all()


def test_a_tokenizer_without_a_mask_is_refused(text_data, tmp_path):
    text_data.tokenizer.save_pretrained(tmp_path)
    bare = load_tokenizer(tmp_path)
    bare.mask_token = None
    with pytest.raises(ValueError, match=r"has no mask token; use model.objective=causal"):
        make_objective("masked", replace(text_data, tokenizer=bare)).batch(torch.tensor([0]), key=(0,))
