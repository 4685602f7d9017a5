"""The spectrum between two endpoints: checkpoints whose weights are linear in the harmful weight w.

    W(w) = (1 - w) W_unharmful + w W_harmful

Full checkpoints are merged by mergekit's linear method in fp32 and stored in the endpoints' number
type; the same arithmetic is available in memory, tensor by tensor. Under LoRA it is the change of
weights that is linear. At w = 0 and w = 1 the result is the endpoint itself.
"""

from refbias.spectrum.full import check_endpoints, iter_merged, merge_full, merged_tensor
from refbias.spectrum.lora import combined_adapter, merge_lora
from refbias.spectrum.memory import load_merged_into

__all__ = [
    "check_endpoints",
    "combined_adapter",
    "iter_merged",
    "load_merged_into",
    "merge_full",
    "merge_lora",
    "merged_tensor",
]
