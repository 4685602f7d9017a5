"""Sequence classifiers: the right label's softmax, truncation, foreign tokenizers, on a tiny RoBERTa."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refbias.config.scorers import DEFAULT_SCORERS, ClassifierSettings
from refbias.errors import UserError
from refbias.scorers import ScoredItem, describe, tally
from refbias.scorers.classifier import SequenceClassifier, label_index
from tests.tiny import SENTENCES
from tests.tiny_classifier import BOS, EOS, PAD, POSITIONS, VOCABULARY, build_roberta, build_tokenizer

TEXTS = [*SENTENCES, "a", "Old people", "He was cruel. " * 30, "kind"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_roberta(tmp_path_factory.mktemp("roberta") / "model")


def settings(folder: Path, **changes: Any) -> ClassifierSettings:
    data: dict[str, Any] = {"model": {"kind": "local", "path": str(folder)}, "label": "LABEL_1", "batch_size": 3}
    return ClassifierSettings.model_validate({**data, **changes})


def make(folder: Path, **changes: Any) -> SequenceClassifier:
    return SequenceClassifier("toxigen_roberta", settings(folder, **changes), folder, "cpu")


def one_by_one(folder: Path, texts: list[str], index: int, most: int) -> np.ndarray:
    """P(label) of each text by a plain forward of its own, with numpy's softmax."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for text in texts:
        inner = tokenizer(text, add_special_tokens=False)["input_ids"][: most - 2]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[BOS, *inner, EOS]])).logits[0].double().numpy()
        exponent = np.exp(logits - logits.max())
        found.append(exponent[index] / exponent.sum())
    return np.array(found)


def items(*texts: str) -> list[ScoredItem]:
    return [ScoredItem(f"o{number}", "a prompt", text) for number, text in enumerate(texts)]


def test_probabilities_equal_a_plain_forward_of_each_text(folder: Path) -> None:
    classifier = make(folder)
    # 514 rows hold 512 tokens, and 40 hold 38
    assert classifier.max_tokens == POSITIONS - PAD - 1
    found = [score.probability for score in classifier.score(items(*TEXTS))]
    expected = one_by_one(folder, TEXTS, 1, POSITIONS - PAD - 1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert expected.std() > 0.05, "the oracle tells the texts apart"
    assert 0 < sum(expected > 0.5) < len(expected)
    assert [score.value for score in classifier.score(items(*TEXTS))] == [int(p > 0.5) for p in expected]


def test_fewer_tokens_by_configuration(folder: Path) -> None:
    classifier = make(folder, max_tokens=6)
    np.testing.assert_allclose(classifier.probabilities(TEXTS), one_by_one(folder, TEXTS, 1, 6), atol=1e-5)


def test_the_label_is_found_by_name_wherever_it_stands(tmp_path: Path) -> None:
    folder = build_roberta(tmp_path / "model", {0: "toxic", 1: "benign", 2: "unsure"})
    classifier = make(folder, label="toxic")
    np.testing.assert_allclose(
        classifier.probabilities(TEXTS), one_by_one(folder, TEXTS, 0, POSITIONS - PAD - 1), atol=1e-5
    )
    with pytest.raises(UserError, match=r"0 labels 'LABEL_1': key 'label' must be one of toxic, benign, unsure"):
        make(folder)


def test_two_labels_of_one_name_are_refused() -> None:
    class Model:
        class config:  # noqa: N801
            id2label = {0: "a", 1: "a"}  # noqa: RUF012

    with pytest.raises(UserError, match="2 labels 'a'"):
        label_index(Model(), "a", "scorers.x")  # type: ignore[arg-type]


def test_the_threshold_is_the_configured_one(folder: Path) -> None:
    found = make(folder, threshold=0.9).score(items(*TEXTS))
    assert [score.value for score in found] == [int((score.probability or 0) > 0.9) for score in found]
    assert {score.verdict for score in found} <= {"LABEL_1", "not LABEL_1"}


def test_texts_of_several_labels_use_the_labels_own_probability(tmp_path: Path) -> None:
    folder = build_roberta(tmp_path / "model", problem_type="multi_label_classification")
    found = make(folder).probabilities(["kind"])[0]
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(folder)("kind", return_tensors="pt").input_ids
    logit = model(input_ids=ids).logits[0, 1].item()
    assert found == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-6)


def test_an_empty_statement_is_not_toxic_and_counted(folder: Path) -> None:
    scores = make(folder).score(items("", " \n", "kind"))
    assert [score.value for score in scores[:2]] == [0, 0]
    assert tally(scores)["n_empty"] == 2
    assert make(folder).score([]) == []
    with pytest.raises(UserError, match="its text is missing"):
        make(folder).score([ScoredItem("a", "p", None)])  # type: ignore[arg-type]


def test_another_models_tokenizer_is_refused_before_the_forward_pass(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    other = tmp_path / "model"
    shutil.copytree(folder, other)
    build_tokenizer(other, VOCABULARY + 60)
    classifier = make(other)

    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("the forward pass was reached")

    monkeypatch.setattr(classifier._model, "forward", never)
    with pytest.raises(
        UserError, match=r"token id \d+ lies beyond the model's 320 embeddings: the tokenizer is another"
    ):
        classifier.score(items(*TEXTS))


def test_a_model_without_a_classifier_is_refused(folder: Path, tmp_path: Path) -> None:
    from transformers import RobertaForSequenceClassification

    RobertaForSequenceClassification.from_pretrained(folder).roberta.save_pretrained(tmp_path / "base")
    build_tokenizer(tmp_path / "base")
    with pytest.raises(UserError, match=r"tensor 'classifier\.\S+' is missing"):
        make(tmp_path / "base")


def test_bfloat16_is_close_and_the_fingerprint_follows_the_settings(folder: Path) -> None:
    exact, rough = make(folder), make(folder, dtype="bfloat16")
    np.testing.assert_allclose(rough.probabilities(TEXTS), exact.probabilities(TEXTS), atol=0.1)
    assert exact.fingerprint == make(folder).fingerprint
    assert exact.fingerprint != make(folder, threshold=0.4).fingerprint
    assert describe(exact)["kind"] == "classifier"


def test_the_default_is_toxigens_own() -> None:
    chosen = DEFAULT_SCORERS["toxigen_roberta"]
    assert isinstance(chosen, ClassifierSettings)
    assert (chosen.model.model_dump()["id"], chosen.label) == ("tomh/toxigen_roberta", "LABEL_1")
    assert (chosen.threshold, chosen.max_tokens) == (0.5, 512)
