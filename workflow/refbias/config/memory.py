"""What full fine-tuning with AdamW takes, under each memory plan, so that a plan can be chosen before it runs.

AdamW keeps, beside the weights, a gradient and two moments of each. Bytes a parameter, on each card
and in the host's memory (activations, logits and the libraries come on top):

===========  ==================================  =================  ============================
plan         weights, gradients, moments         card               host
===========  ==================================  =================  ============================
single       fp32 (bf16 copies in autocast)      18                 0
single       bf16 (``weights_dtype``)            8                  0
paged_8bit   bf16, moments in 8 bit, paged       4                  2 (where they do not fit)
paged_8bit   fp32, moments in 8 bit, paged       10                 2 (where they do not fit)
offload      bf16; fp32 master copy on the host  2                  16
fsdp         fp32, shared by n cards             16 / n             4 n while loading
zero3        bf16, fp32 master copy, n cards     16 / n             2 n while loading
===========  ==================================  =================  ============================

For 8 billion parameters in bfloat16: `single` needs ``weights_dtype: bfloat16`` and 64 GB, one card
of 80 GB; `paged_8bit` 32 GB and `offload` 16 GB (and 128 GB of the host's), one card of 40 GB, both
slower (bitsandbytes keeps the embedding's moments in fp32: a little more); `fsdp` and `zero3` 32 GB on
each of four cards. All of them want ``gradient_checkpointing``.
"""

from refbias.config.finetune import FullRegime


def bytes_per_parameter(regime: FullRegime) -> tuple[float, float]:
    """Return bytes a parameter on each card and on the host, as in the table above.

    Parameters
    ----------
    regime
        Settings of full fine-tuning.
    """
    width = 4 if regime.weights_dtype == "float32" else 2
    # under autocast fp32 weights are copied to bf16 for a forward and backward pass
    copies = 2 if width == 4 and regime.dtype == "bfloat16" else 0
    if regime.memory_plan == "single":
        return 4 * width + copies, 0
    if regime.memory_plan == "paged_8bit":
        return 2 * width + copies, 2
    half = 2 if regime.dtype == "bfloat16" else 4
    if regime.memory_plan == "offload":
        return half, 16
    loading = 4 if regime.memory_plan == "fsdp" else half
    return 16 / regime.processes, loading * regime.processes
