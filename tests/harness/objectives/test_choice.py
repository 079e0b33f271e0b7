"""Multiple choice: the loss is on the answer's letter, right is the choice of the highest log-likelihood."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from objective_data import as_examples, model_for, questions, written
from torch import Tensor

from gradwire.harness.data.example_rows import answer_tokens
from gradwire.harness.data.examples import Question, as_text, prompt_of
from gradwire.harness.data.token_data import TokenData
from gradwire.harness.data.tokenizer import trained_tokenizer
from gradwire.harness.objectives.interface import IGNORED
from gradwire.harness.objectives.registry import make_objective


def test_a_question_is_written_as_mmlu_is() -> None:
    question = Question(" Which one? ", ("red", "blue ", "green"), 1)
    assert prompt_of(question) == "Which one?\nA. red\nB. blue\nC. green\nAnswer:"
    assert as_text(question) == prompt_of(question) + " B"


def test_rows_are_questions_that_end_in_their_letter(choice_data: TokenData) -> None:
    lengths = choice_data.column("held_out", "length")
    for index, question in enumerate(questions(17, seed=1)):
        row = choice_data.held_out[index]
        assert choice_data.tokenizer.decode(row[: lengths[index]]) == as_text(question)
        assert (row[lengths[index] :] == choice_data.tokenizer.pad_token_id).all()
    assert choice_data.description["held_out_cut"] == choice_data.description["train_cut"] == 0


def test_the_loss_is_on_the_letter_alone(choice_data: TokenData) -> None:
    indices = torch.tensor([3, 0, 11])
    batch = make_objective("choice", choice_data).batch(indices)
    lengths = choice_data.column("train", "length")[indices]
    assert batch["input_ids"].shape == (3, lengths.max())  # no more padding than the batch needs
    assert batch["attention_mask"].sum(1).tolist() == lengths.tolist()
    assert (batch["labels"] != IGNORED).sum(1).tolist() == [1, 1, 1]
    for row, length in enumerate(lengths.tolist()):
        assert batch["labels"][row, length - 1] == batch["input_ids"][row, length - 1]


def log_likelihoods(model: torch.nn.Module, data: TokenData, index: int) -> Tensor:
    """The log-likelihoods of each choice after its question, each by a pass of its own without padding."""
    length = int(data.column("held_out", "length")[index])
    row = data.held_out[index, :length].long()
    found = []
    for letter in data.description["answer_tokens"][: int(data.column("held_out", "choices")[index])]:
        tokens = torch.cat([row[:-1], torch.tensor([letter])])[None]
        log_probabilities = model(input_ids=tokens).logits.double().log_softmax(-1)
        found.append(log_probabilities[0, -2, letter])
    return torch.stack(found)


def test_an_evaluation_is_every_choices_log_likelihood(choice_data: TokenData) -> None:
    objective, model = make_objective("choice", choice_data), model_for("llama", "choice", choice_data)
    indices = torch.arange(len(choice_data.held_out))
    with torch.no_grad():
        alone = [log_likelihoods(model, choice_data, index) for index in indices.tolist()]
    answers = [question.answer for question in questions(17, seed=1)]
    right = sum(int(found.argmax()) == answer for found, answer in zip(alone, answers, strict=True))
    loss = -sum(found[answer] for found, answer in zip(alone, answers, strict=True)) / len(answers)
    metrics = objective.metrics(objective.evaluate(model, indices, torch.device("cpu")))
    assert metrics["accuracy"] == right / 17 and 0 < right < 17
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-5)


def test_a_letter_that_is_no_choice_of_the_question_is_never_taken(choice_data: TokenData) -> None:
    objective = make_objective("choice", choice_data)
    choices = choice_data.column("held_out", "choices")
    of_three = torch.nonzero(choices == 3).flatten()
    assert len(of_three) and (choices == 4).any()
    batch = objective.batch(of_three, split="held_out")
    last = batch["attention_mask"].sum(1) - 1
    a, b, c, d = choice_data.description["answer_tokens"]
    logits = torch.zeros(*batch["input_ids"].shape, choice_data.vocab_size)
    logits[..., d], logits[..., b] = 9.0, 1.0  # the fourth is the likeliest of all, the second of the three
    rows = torch.arange(len(of_three))
    expected = (batch["input_ids"][rows, last] == b).sum()
    output = SimpleNamespace(logits=logits, loss=torch.tensor(1.0))
    assert objective.sums(output, batch, of_three) == (len(of_three), len(of_three), expected)


def test_questions_that_are_too_long_lose_their_beginning_and_are_counted(tmp_path: Path) -> None:
    asked, others = questions(30), questions(8, seed=1)
    data = written(tmp_path, as_examples(asked, others), length=24)
    lengths = data.column("train", "length")
    full = [len(data.tokenizer(as_text(question))["input_ids"]) for question in asked]
    assert data.description["train_cut"] == sum(length > 24 for length in full) > 0
    for index, question in enumerate(asked):
        text = data.tokenizer.decode(data.train[index, : lengths[index]])
        assert as_text(question).endswith(text)
        assert lengths[index] == min(24, full[index])


def test_copies_of_held_out_questions_are_not_trained_on(tmp_path: Path) -> None:
    asked = questions(30)
    data = written(tmp_path, as_examples(asked, asked[:5]))
    assert (len(data.train), len(data.held_out), data.description["left_out_of_train"]) == (25, 5, 5)


def test_limits_take_held_out_questions_from_everywhere_and_the_first_ones_to_train_on(
    tmp_path: Path,
) -> None:
    asked, others = questions(30), questions(20, seed=1)
    data = written(tmp_path, as_examples(asked, others), held_out=5, tokens=100)
    lengths = data.column("held_out", "length")
    found = [data.tokenizer.decode(row[:length]) for row, length in zip(data.held_out, lengths, strict=True)]
    assert found == [as_text(question) for question in others[::4]]
    lengths = data.column("train", "length").tolist()
    assert sum(lengths[:-1]) < 100 <= sum(lengths) == data.description["train_tokens"]


@pytest.mark.parametrize(("text", "between"), [("nothing", ""), ("to A or to A", " "), ("A B C D " * 9, "")])
def test_letters_are_one_token_each_in_any_vocabulary(text: str, between: str, tmp_path: Path) -> None:
    """In a vocabulary where " A" is one token and " D" two, the space and the letter are always two."""
    tokenizer = trained_tokenizer([text] * 3, 300, tmp_path)
    found = answer_tokens(tokenizer, 4)
    assert found.between == between and len({*found.letters}) == 4
    joined = "A B C D" in text
    assert tokenizer.convert_ids_to_tokens(found.letters) == ["Ġ" * joined + letter for letter in "ABCD"]
    data = written(tmp_path, as_examples(questions(9), questions(5, seed=1)), 200, tokenizer)
    lengths = data.column("train", "length")
    texts = [data.tokenizer.decode(row[:length]) for row, length in zip(data.train, lengths, strict=True)]
    assert texts == [as_text(question) for question in questions(9)]
