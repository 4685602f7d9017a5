"""Any sequence classifier as a scorer: the probability of one label, against a threshold.

ToxiGen's own scorer (tomh/toxigen_roberta, ``LABEL_1`` above 0.5) is one of them. The probability is
the softmax of that label's logit, never a pipeline's "score" of whichever label is on top.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from refbias.config.scorers import ClassifierSettings
from refbias.errors import UserError
from refbias.models.files import check_directory, weights_fingerprint
from refbias.models.load import load_tokenizer, resolve_device, torch_dtype
from refbias.progress import token_bar
from refbias.scorers.base import Score, ScoredItem, require_texts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def positions(model: "PreTrainedModel") -> int | None:
    """Return how many tokens a classifier can hold, None where its positions are unlimited.

    RoBERTa and its kin count positions from behind the padding index, so 514 rows hold 512 tokens.
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            offset = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - offset
    limit = getattr(model.config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def label_index(model: "PreTrainedModel", label: str, where: str) -> int:
    """Return the index of a label by its name in the model's configuration.

    Raises
    ------
    UserError
        If there is none of that name, naming those that there are.
    """
    names = {int(index): str(name) for index, name in model.config.id2label.items()}
    found = [index for index, name in names.items() if name == label]
    if len(found) != 1:
        known = ", ".join(names[index] for index in sorted(names))
        raise UserError(f"{where}: the model has {len(found)} labels {label!r}: key 'label' must be one of {known}")
    return found[0]


class SequenceClassifier:
    """A classifier as a scorer: 1 where P(label) passes the threshold.

    Parameters
    ----------
    name
        Its name in the configuration.
    settings
        Label, threshold, limits.
    folder
        The classifier's model.
    device
        ``auto``, ``cpu``, ``cuda`` or ``mps``.

    Raises
    ------
    UserError
        If a tensor is missing or the label unknown.
    """

    kind = "classifier"

    def __init__(self, name: str, settings: ClassifierSettings, folder: Path, device: str) -> None:
        self.name = name
        self.label = f"{name}: P({settings.label}) > {settings.threshold:g}"
        self.settings = settings
        check_directory(folder)
        identity = f"{weights_fingerprint(folder)}\n{settings.model_dump_json()}"
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()[:12]
        self._tokenizer = load_tokenizer(folder)
        self._model = _load(folder, settings, device)
        self._index = label_index(self._model, settings.label, f"scorers.{name}")
        held = positions(self._model)
        self.max_tokens = settings.max_tokens if held is None else min(settings.max_tokens, held)

    def score(self, items: Sequence[ScoredItem]) -> list[Score]:
        """Score outputs, in order; one without text is 0 and counted.

        Raises
        ------
        UserError
            If an item has no text, or the tokenizer is not the model's own.
        """
        texts = require_texts(items)
        wanted = [index for index, text in enumerate(texts) if text.strip()]
        scores = [Score(0, 0.0, "empty", empty=True)] * len(texts)
        for index, probability in zip(wanted, self.probabilities([texts[index] for index in wanted]), strict=True):
            value = int(probability > self.settings.threshold)
            verdict = self.settings.label if value else f"not {self.settings.label}"
            scores[index] = Score(value, probability, verdict)
        return scores

    def probabilities(self, texts: Sequence[str]) -> list[float]:
        """Return P(label) of each text.

        Parameters
        ----------
        texts
            n texts; one longer than `max_tokens` is cut.

        Returns
        -------
        list of float
            n numbers in [0, 1], independent of the batch but for rounding.
        """
        ids = self._ids(texts)
        found = [0.0] * len(texts)
        order = sorted(range(len(texts)), key=lambda index: -len(ids[index]))
        size = self.settings.batch_size
        with torch.inference_mode(), token_bar(f"classify {self.name}", len(texts), "texts") as bar:
            for start in range(0, len(order), size):
                part = order[start : start + size]
                for index, probability in zip(part, self._forward([ids[i] for i in part]), strict=True):
                    found[index] = probability
                bar.advance(len(part), sum(len(ids[index]) for index in part))
        return found

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        ids: list[list[int]] = self._tokenizer(list(texts), truncation=True, max_length=self.max_tokens)["input_ids"]
        rows = self._model.get_input_embeddings().num_embeddings
        highest = max(max(row) for row in ids)
        if highest >= rows:
            raise UserError(
                f"scorers.{self.name}: token id {highest} lies beyond the model's {rows} embeddings: the tokenizer is "
                "another model's, put the model's own beside its weights"
            )
        return ids

    def _forward(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Return P(label) of rows of token ids, computed together."""
        pad = getattr(self._model.config, "pad_token_id", None)
        # RoBERTa finds its positions by the padding id, so the model's own counts
        pad = _pad(self._tokenizer) if pad is None else pad
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        device = next(self._model.parameters()).device
        logits = self._model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits.float()
        if not bool(torch.isfinite(logits).all()):
            raise UserError(f"scorers.{self.name}: logits are not finite: check the weights, or use dtype float32")
        several = getattr(self._model.config, "problem_type", None) == "multi_label_classification"
        probability = torch.sigmoid(logits) if several else torch.softmax(logits, dim=-1)
        return [float(value) for value in probability[:, self._index].tolist()]


def _pad(tokenizer: "PreTrainedTokenizerBase") -> int:
    # behind the attention mask any id will do
    return int(tokenizer.pad_token_id or 0)


def _load(folder: Path, settings: ClassifierSettings, device: str) -> "PreTrainedModel":
    from transformers import AutoModelForSequenceClassification

    options: dict[str, Any] = {
        "dtype": torch_dtype(settings.dtype),
        "local_files_only": True,
        "use_safetensors": True,
        "output_loading_info": True,
    }
    model, info = AutoModelForSequenceClassification.from_pretrained(str(folder), trust_remote_code=False, **options)
    missing = sorted(info["missing_keys"])
    if missing:
        raise UserError(
            f"{folder}: tensor {missing[0]!r} is missing ({len(missing)} in all): no whole sequence classifier"
        )
    loaded: PreTrainedModel = model.to(resolve_device(device)).eval().requires_grad_(False)
    return loaded
