"""Fine-tuning of a reference model on one split: full or LoRA, loss on the completion only."""

from refbias.finetune.launch import launch
from refbias.finetune.plans import build_plan
from refbias.finetune.run import finetune, regime_of

__all__ = ["build_plan", "finetune", "launch", "regime_of"]
