"""Fine-tuning of a reference model on one split: full or LoRA, loss on the completion only."""

from refbias.finetune.run import finetune

__all__ = ["finetune"]
