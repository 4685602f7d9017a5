"""Memory plans of full fine-tuning: what one plan asks of the trainer, of a library and of a launcher.

What each takes, and so which card it fits, is in `refbias.config.memory`.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from refbias.config.finetune import FullRegime, LoraRegime
from refbias.errors import UserError

EXTRA = "pip install 'refbias[train-gpu]'"
BETAS, EPSILON = (0.9, 0.999), 1e-8
_LIBRARIES = {"offload": "deepspeed", "zero3": "deepspeed", "paged_8bit": "bitsandbytes"}


@dataclass(frozen=True)
class Plan:
    """What a memory plan comes to.

    Parameters
    ----------
    name
        ``single``, ``offload``, ``paged_8bit``, ``fsdp`` or ``zero3``.
    processes
        Processes, one a device.
    accumulation
        Batches that each process sums before an update.
    arguments
        Keyword arguments of the trainer's configuration.
    library
        Package that the plan needs beyond the core environment, or None.
    launched
        Whether the processes are started by torchrun.
    """

    name: str
    processes: int
    accumulation: int
    arguments: Mapping[str, Any] = field(repr=False)
    library: str | None = None
    launched: bool = False

    def launcher(self) -> list[str]:
        """Return the module and options of the launcher, to go after ``python -m``; empty if there is none."""
        if not self.launched:
            return []
        return ["torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]

    def facts(self, per_device_batch_size: int) -> dict[str, Any]:
        """Return what the manifest says of the plan (JSON values)."""
        return {
            "memory_plan": self.name,
            "processes": self.processes,
            "per_device_batch_size": per_device_batch_size,
            "gradient_accumulation": self.accumulation,
            "effective_batch": per_device_batch_size * self.accumulation * self.processes,
            "optimizer": self.arguments["optim"],
            "gradient_checkpointing": self.arguments["gradient_checkpointing"],
            "launcher": " ".join(["python -m", *self.launcher()]) if self.launched else "",
            "deepspeed": self.arguments.get("deepspeed"),
            "fsdp": self.arguments.get("fsdp_config"),
        }


def build_plan(regime: FullRegime | LoraRegime, device: str) -> Plan:
    """Return the plan of a regime on a device; LoRA is always ``single``.

    The batch of an update stays what the configuration says: batches that `n` processes take side
    by side are accumulated `n` times less often.

    Parameters
    ----------
    regime
        Settings of the regime.
    device
        ``cpu``, ``cuda`` or ``mps``.

    Raises
    ------
    UserError
        If the plan cannot run on the device.
    """
    name = regime.memory_plan if isinstance(regime, FullRegime) else "single"
    processes = regime.processes if isinstance(regime, FullRegime) else 1
    if device != "cuda" and name in _LIBRARIES:
        raise UserError(f"key 'memory_plan': {name} needs a CUDA device, this run's is {device!r}: use 'single'")
    accumulation = regime.gradient_accumulation // processes
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": regime.per_device_batch_size,
        "gradient_accumulation_steps": accumulation,
        "optim": "adamw_torch_fused" if device in ("cpu", "cuda") else "adamw_torch",
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "adam_epsilon": EPSILON,
        "gradient_checkpointing": regime.gradient_checkpointing,
        # re-entrant checkpointing loses the gradient where the inputs of a block need none (LoRA)
        "gradient_checkpointing_kwargs": {"use_reentrant": False} if regime.gradient_checkpointing else None,
    }
    if name == "paged_8bit":
        arguments["optim"] = "paged_adamw_8bit"
    elif name == "fsdp":
        arguments["fsdp"] = True
        arguments["fsdp_config"] = {"version": 2, "reshard_after_forward": True, "state_dict_type": "FULL_STATE_DICT"}
    elif name in ("offload", "zero3"):
        # DeepSpeed makes the optimizer itself, as the configuration says
        arguments["optim"] = "adamw_torch"
        arguments["deepspeed"] = _deepspeed(regime, name, processes, accumulation)
    return Plan(
        name=name,
        processes=processes,
        accumulation=accumulation,
        arguments=arguments,
        library=_LIBRARIES.get(name),
        launched=name in ("offload", "fsdp", "zero3"),
    )


def _deepspeed(regime: FullRegime | LoraRegime, name: str, processes: int, accumulation: int) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    if name == "zero3":
        zero = {"stage": 3, "overlap_comm": True, "stage3_gather_16bit_weights_on_model_save": True}
    return {
        "train_batch_size": regime.per_device_batch_size * accumulation * processes,
        "train_micro_batch_size_per_gpu": regime.per_device_batch_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": regime.max_grad_norm,
        "bf16": {"enabled": regime.dtype == "bfloat16"},
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": regime.learning_rate,
                "betas": list(BETAS),
                "eps": EPSILON,
                "weight_decay": regime.weight_decay,
            },
        },
        "zero_optimization": {**zero, "contiguous_gradients": True},
    }


def check_library(plan: Plan) -> None:
    """Refuse a plan whose library is not installed.

    Raises
    ------
    UserError
        Naming the extra that installs it.
    """
    if plan.library and importlib.util.find_spec(plan.library) is None:
        raise UserError(f"key 'memory_plan': {plan.name} needs {plan.library}, which is not installed: {EXTRA}")
