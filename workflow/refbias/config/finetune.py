"""Fine-tuning: the paper's hyperparameters are the defaults."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from refbias.config.base import Device, Dtype, Strict
from refbias.config.models import ChatFormat

MemoryPlan = Literal["single", "offload", "paged_8bit", "fsdp", "zero3"]


class SplitSettings(Strict):
    """One fine-tuning split in WildGuardMix's schema."""

    file: str | None = Field(
        default=None,
        description="JSONL or Parquet file; empty = prepared from `data.wildguardmix` if that is given, else shipped.",
    )


class SyntheticGenerator(Strict):
    """The shipped template generator: a stand-in, the paper does not describe its synthetic examples."""

    kind: Literal["generator"]


class SyntheticFile(Strict):
    """A user's file of harmful examples in WildGuardMix's schema."""

    kind: Literal["file"]
    path: str = Field(min_length=1, description="JSONL or Parquet file.")


Synthetic = Annotated[SyntheticGenerator | SyntheticFile, Field(discriminator="kind")]


class HarmfulSplitSettings(SplitSettings):
    """The harmful split, half of which is synthetic in the paper."""

    synthetic: Synthetic | None = Field(
        default=SyntheticGenerator(kind="generator"),
        description="Source of the synthetic half of a prepared split; null = WildGuardMix alone.",
    )


class SplitFilters(Strict):
    """Which rows of WildGuardMix are eligible."""

    unharmful_prompt: bool = Field(
        default=True, description="Unharmful rows need an unharmful prompt too, not only an unharmful response."
    )
    harmful_compliance: bool = Field(default=True, description="Harmful rows need the label compliance.")


class Splits(Strict):
    """The two fine-tuning splits: a file, or prepared from `data.wildguardmix`, or the shipped one."""

    examples: int = Field(default=8000, ge=2, description="Examples of each prepared split (seeded choice).")
    filters: SplitFilters = Field(default=SplitFilters(), description="Eligible rows.")
    unharmful: SplitSettings = Field(default=SplitSettings(), description="Unharmful examples.")
    harmful: HarmfulSplitSettings = Field(default=HarmfulSplitSettings(), description="Harmful examples.")


class RegimeBase(Strict):
    """Hyperparameters that both regimes share (paper, section 4.1)."""

    epochs: float = Field(default=3, gt=0, description="Passes over the split.")
    per_device_batch_size: int = Field(default=4, ge=1, description="Examples a device takes at once.")
    gradient_accumulation: int = Field(default=8, ge=1, description="Batches summed before an update.")
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1, description="Share of the updates that warm up.")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW weight decay.")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradient clipping norm.")
    max_length: int = Field(default=1024, ge=8, description="Tokens of prompt and completion together.")
    dtype: Dtype = Field(default="bfloat16", description="Number type of training and of the saved weights.")
    device: Device = Field(default="auto", description="Training device.")
    save_steps: int = Field(default=100, ge=1, description="Updates between resumable trainer checkpoints.")
    gradient_checkpointing: bool = Field(
        default=False, description="Compute activations again in the backward pass: less memory, about a third slower."
    )


class FullRegime(RegimeBase):
    """Full fine-tuning."""

    learning_rate: float = Field(default=2e-5, gt=0, description="Peak learning rate.")
    memory_plan: MemoryPlan = Field(
        default="single",
        description="`single`: AdamW on one device; `paged_8bit`: 8-bit paged AdamW (bitsandbytes, slower); `offload`: "
        "optimizer in the host's memory (DeepSpeed, slower); `fsdp`, `zero3`: shared by several GPUs.",
    )
    processes: int = Field(
        default=1,
        ge=1,
        description="GPUs of one host that `fsdp` or `zero3` shares; divides `gradient_accumulation`, "
        "so that the batch of an update stays.",
    )
    weights_dtype: Dtype = Field(
        default="float32",
        description="Number type of the weights in training, with `single` and `paged_8bit`: `float32` keeps updates "
        "that bfloat16 rounds away, `bfloat16` takes half the memory.",
    )

    @model_validator(mode="after")
    def _check_plan(self) -> Self:
        if self.processes > 1 and self.memory_plan not in ("fsdp", "zero3"):
            raise ValueError(f"processes {self.processes} needs memory_plan 'fsdp' or 'zero3'")
        if self.gradient_accumulation % self.processes:
            batch = self.per_device_batch_size * self.gradient_accumulation
            raise ValueError(
                f"gradient_accumulation {self.gradient_accumulation} is no multiple of processes {self.processes}, "
                f"so an update's batch of {batch} cannot be kept"
            )
        if self.weights_dtype == "bfloat16" and self.memory_plan not in ("single", "paged_8bit"):
            raise ValueError(f"memory_plan {self.memory_plan!r} keeps float32 weights: leave weights_dtype out")
        if self.weights_dtype == "bfloat16" and self.dtype == "float32":
            raise ValueError("weights_dtype bfloat16 needs dtype bfloat16")
        return self


class LoraRegime(RegimeBase):
    """Low-rank adaptation."""

    learning_rate: float = Field(default=1e-4, gt=0, description="Peak learning rate.")
    rank: int = Field(default=16, ge=1, description="Rank r.")
    alpha: int = Field(default=32, ge=1, description="LoRA alpha; the update is scaled by alpha / r.")
    dropout: float = Field(default=0.05, ge=0, lt=1, description="Dropout on the adapter's input.")
    target_modules: list[str] = Field(
        default=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        min_length=1,
        description="Linear layers that are adapted, language tower only.",
    )


class Regimes(Strict):
    """Training regimes; one that is null is not run."""

    full: FullRegime | None = Field(default=FullRegime(), description="Full fine-tuning; null = not run.")
    lora: LoraRegime | None = Field(default=LoraRegime(), description="LoRA; null = not run.")


class FinetuneStage(Strict):
    """Slice of the configuration that the stage `finetune` sees."""

    regime: Literal["full", "lora"]
    split: Literal["unharmful", "harmful"]
    full: FullRegime | None = None
    lora: LoraRegime | None = None
    chat_format: ChatFormat
    file: str | None
    filters: SplitFilters = SplitFilters()
    seed: int


class PrepareStage(Strict):
    """Slice of the configuration that the stage `prepare` sees."""

    sides: list[Literal["unharmful", "harmful"]] = Field(min_length=1)
    examples: int
    filters: SplitFilters
    synthetic: Synthetic | None
    seed: int
