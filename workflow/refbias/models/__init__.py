"""Models: where they come from, how they are loaded, and how a conversation becomes token ids."""

from refbias.models.acquire import acquire
from refbias.models.chat import completion_ids, prompt_ids, stop_ids
from refbias.models.load import Checkpoint, load_base, load_lm, load_tokenizer, resolve_device, torch_dtype

__all__ = [
    "Checkpoint",
    "acquire",
    "completion_ids",
    "load_base",
    "load_lm",
    "load_tokenizer",
    "prompt_ids",
    "resolve_device",
    "stop_ids",
    "torch_dtype",
]
