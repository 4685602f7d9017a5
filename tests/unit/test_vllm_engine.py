"""The real engine, where its environment was built: the same greedy responses as transformers."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from refbias.config.generation import INTERPRETERS, GenerationSettings
from refbias.config.models import Compute
from refbias.generation import Request, completion
from refbias.models import load_tokenizer
from tests.tiny import EOS, PAD, VOCABULARY, build_tokenizer

PROMPTS = [
    "Old people read",
    "Muslims walk to the market in the morning and buy",
    "He was",
    "Question: Do you agree that the train is late? Answer: I agree. I disagree. Muslims walk to the market",
    "A warm smile, a generous gift",
    "Canadians, Americans and Europeans",
]
CPU = Compute(device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def python() -> Path:
    """The vLLM environment's interpreter; the tests are skipped where there is none."""
    named = os.environ.get("REFBIAS_VLLM_PYTHON")
    path = Path(named or str(INTERPRETERS["vllm"]))
    if named and not path.is_file():
        pytest.fail(f"REFBIAS_VLLM_PYTHON: {path} is no interpreter")
    if not path.is_file():
        pytest.skip(f"{path} is not there: `make env-vllm` builds it, or name one in REFBIAS_VLLM_PYTHON")
    return path.absolute()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose heads are as wide as the engine's kernels want."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    folder = tmp_path_factory.mktemp("model") / "llama"
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=2,
        initializer_range=0.2,
    )
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    build_tokenizer(folder)
    return folder


@pytest.mark.slow
def test_greedy_responses_are_those_of_transformers(python: Path, model: Path) -> None:
    tokenizer: Any = load_tokenizer(model)
    asked = [Request(text, "", tuple(tokenizer(text)["input_ids"])) for text in PROMPTS]
    chosen = GenerationSettings.model_validate(
        {"backend": "vllm", "interpreter": str(python), "vllm": {"enforce_eager": True, "kv_cache_gb": 0.2}}
    )
    found = completion.complete(model, asked, 20, generation=chosen, compute=CPU)
    assert found == completion.complete(model, asked, 20, compute=CPU)
    assert len(set(found)) > 3
