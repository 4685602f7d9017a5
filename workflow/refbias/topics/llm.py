"""Topics by a language model: it is asked for one of ten labels, and the likeliest label is taken.

Nothing is generated. The log-probability of each whole answer, its end included, is computed after
the same question, so that the model cannot answer anything else and no label is favoured for being
the beginning of another.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from refbias.benchmarks.base import Message
from refbias.errors import UserError
from refbias.models.chat import completion_ids, prompt_ids
from refbias.progress import token_bar
from refbias.topics.names import LABELS
from refbias.topics.rules import TopicChoice

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def label_text(label: str) -> str:
    """Return how a label is spelled to the model."""
    return label.replace("_", " ")


def question(prompt: str) -> str:
    """Return the user turn that asks for a prompt's topic."""
    names = ", ".join(label_text(label) for label in LABELS)
    return (
        "Which trait of people is the text below about? Answer with one label and nothing else.\n"
        f"Labels: {names}.\n"
        "The label none means that the text is about no group of people that one of the other labels covers.\n\n"
        f"Text: {prompt}"
    )


def label_log_probabilities(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", prompt: str, chat_format: str = "auto"
) -> list[float]:
    """Return log P(label and its end | question) of each of `LABELS`.

    Parameters
    ----------
    model
        Causal language model in evaluation mode.
    tokenizer
        Its tokenizer.
    prompt
        The text that has a topic.
    chat_format
        ``auto``, ``template`` or ``plain``.

    Returns
    -------
    list of float
        Shape (10,), natural logarithms, in the order of `LABELS`.

    Raises
    ------
    UserError
        If the question does not fit the model, its tokenizer is another model's, or a number is not
        finite.
    """
    turns = [Message("user", question(prompt))]
    before = prompt_ids(tokenizer, turns, chat_format)
    answers = [completion_ids(tokenizer, turns, label_text(label), chat_format) for label in LABELS]
    longest = max(map(len, answers))
    _check(model, before, answers)
    # padding stands behind an answer, where nothing before it can see it
    rows = [[*before, *answer, *[answer[-1]] * (longest - len(answer))] for answer in answers]
    device = next(model.parameters()).device
    with torch.inference_mode():
        # the last position of the question predicts the first token of the answer
        logits = model(input_ids=torch.tensor(rows, device=device), logits_to_keep=longest + 1, use_cache=False).logits
        log_probability = torch.log_softmax(logits[:, :-1].float(), dim=-1).cpu().double()
    found = [
        float(sum(log_probability[row, place, token] for place, token in enumerate(answer)))
        for row, answer in enumerate(answers)
    ]
    if not all(value == value and value > float("-inf") for value in found):
        raise UserError("topics.model: log-probabilities are not finite: check the weights, or use dtype float32")
    return found


def _check(model: "PreTrainedModel", before: Sequence[int], answers: Sequence[Sequence[int]]) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    highest = max(max(ids) for ids in [before, *answers])
    if highest >= rows:
        raise UserError(
            f"topics.model: token id {highest} lies beyond the model's {rows} embeddings: use the model's own tokenizer"
        )
    held = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    needed = len(before) + max(map(len, answers))
    if held is not None and needed > held:
        raise UserError(f"topics.model: a prompt needs {needed} tokens, the model holds {held}: use another model")


def assign_topics(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", prompts: Sequence[str], chat_format: str = "auto"
) -> list[TopicChoice]:
    """Return each prompt's topic and, as what it rests on, its probability among the labels.

    Parameters
    ----------
    model, tokenizer, chat_format
        As in `label_log_probabilities`.
    prompts
        n texts.

    Returns
    -------
    list of TopicChoice
        n topics; `NO_TOPIC` is one of the labels.
    """
    found = []
    with token_bar("topics", len(prompts), "prompts") as bar:
        for prompt in prompts:
            scores = torch.tensor(label_log_probabilities(model, tokenizer, prompt, chat_format), dtype=torch.float64)
            probability = torch.softmax(scores, dim=0)
            best = int(probability.argmax())
            found.append(TopicChoice(LABELS[best], f"p={float(probability[best]):.3f}"))
            bar.advance(1, len(LABELS))
    return found
