"""One fine-tuning run: from a reference model and a split to weights and a loss curve.

Full fine-tuning changes every weight; LoRA adds a low-rank change to linear layers of the language
tower. Training in bfloat16 computes in bf16 on fp32 weights (see `refbias.config.memory` for the
plans that do otherwise); the result is saved in bf16 (an adapter always in fp32: it is small, and
merges add it in fp32). Where several processes share one run, each calls `finetune`, and the first
one writes.
"""

import copy
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.trainer_callback import PrinterCallback

from refbias.artifacts import peak_memory_mb, read_json, versions, write_rows
from refbias.config.finetune import FinetuneStage, FullRegime, LoraRegime
from refbias.errors import UserError
from refbias.finetune.data import LengthGroupedOrder, Sequences, tokenize_examples
from refbias.finetune.loss import add_completion_loss
from refbias.finetune.plans import Plan, build_plan, check_library
from refbias.finetune.save import save_adapter, save_full
from refbias.finetune.trainer import CompletionTrainer, NoFinalCheckpoint, ProgressBar, latest_checkpoint, prepare_work
from refbias.models.chat import FROZEN_DATE
from refbias.models.files import weight_hashes
from refbias.models.heap import keep_freed_memory
from refbias.models.load import load_lm, load_tokenizer, resolve_device, torch_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from refbias.splits import Example

LOSS_COLUMNS = ("step", "epoch", "loss", "learning_rate", "grad_norm")


def finetune(
    settings: FinetuneStage,
    examples: Sequence["Example"],
    reference: Path | str,
    out_dir: Path,
    work_dir: Path,
    callbacks: Sequence[Any] = (),
) -> dict[str, Any]:
    """Fine-tune `reference` on `examples` and write weights and ``loss.csv`` to `out_dir`.

    Parameters
    ----------
    settings
        Regime, hyperparameters, chat format, seed.
    examples
        The split.
    reference
        Directory of the reference model.
    out_dir
        Receives ``model.safetensors`` with configuration and tokenizer (full), or
        ``adapter_model.safetensors`` with ``adapter_config.json`` (LoRA), and ``loss.csv``.
    work_dir
        Holds the resumable state; a run that finds its own unfinished state goes on from it.
    callbacks
        Trainer callbacks that watch the training and change nothing of it.

    Returns
    -------
    dict
        Facts for the manifest (JSON values).

    Raises
    ------
    UserError
        If a loss or gradient is not finite, no example fits, a target module does not exist, or the
        memory plan cannot run here.
    """
    regime = regime_of(settings)
    device = resolve_device(regime.device)
    plan = build_plan(regime, device)
    check_library(plan)
    if device == "cpu":
        keep_freed_memory()
    tokenizer = load_tokenizer(reference)
    data = tokenize_examples(tokenizer, examples, settings.chat_format, regime.max_length)
    transformers.set_seed(settings.seed)
    model = load_lm(reference, dtype=_training_dtype(regime, plan), device="cpu").train().requires_grad_(True)
    trainer = _trainer(settings, regime, plan, model, tokenizer, data, work_dir, device)
    for callback in callbacks:
        trainer.add_callback(callback)
    adapted = _check_adapted(trainer.model, regime) if isinstance(regime, LoraRegime) else 0
    n_trained = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad)
    # shared states are not resumable: accelerate's FSDP checkpoint deadlocks on loading, DeepSpeed's is a pickle
    start = None if plan.launched else _resume_point(settings, data, Path(reference), work_dir)
    trainer.train(resume_from_checkpoint=start)
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    state = trainer.full_state()
    if not trainer.is_world_process_zero():
        return {}
    if isinstance(regime, LoraRegime):
        save_adapter(trainer.model, Path(reference), out_dir)
    else:
        save_full(trainer.model, state, torch_dtype(regime.dtype), Path(reference), out_dir)
    write_rows(out_dir / "loss.csv", LOSS_COLUMNS, [[_cell(entry[key]) for key in LOSS_COLUMNS] for entry in history])
    return {
        **plan.facts(regime.per_device_batch_size),
        **_memory(device),
        "n_examples": len(examples),
        "n_dropped": data.n_dropped,
        "n_truncated": data.n_truncated,
        "n_label_tokens": sum(label != -100 for labels in data.labels for label in labels),
        "updates": trainer.state.global_step,
        "first_loss": history[0]["loss"],
        "last_loss": history[-1]["loss"],
        "adapted_modules": adapted,
        "trained_parameters": n_trained,
        "seed": settings.seed,
        "dtype": regime.dtype,
        "device": device,
        # the last round of batches is filled up from the first, so that all processes take as many
        "n_repeated": -len(data.lengths) % (regime.per_device_batch_size * plan.processes) if plan.processes > 1 else 0,
        "weights_dtype": str(_training_dtype(regime, plan)).removeprefix("torch."),
        "template_date": FROZEN_DATE.date().isoformat(),
        "threads": torch.get_num_threads(),
        "weights_sha256": weight_hashes(out_dir),
    }


def regime_of(settings: FinetuneStage) -> FullRegime | LoraRegime:
    """Return the hyperparameters of the stage's regime.

    Raises
    ------
    UserError
        If the slice lacks them.
    """
    regime = settings.full if settings.regime == "full" else settings.lora
    if regime is None:
        raise UserError(f"--settings: regime {settings.regime!r} has no hyperparameters")
    return regime


def _cell(value: float) -> str:
    return f"{value:.10g}"


def _memory(device: str) -> dict[str, float]:
    """Return the peak memory of this process, and of its device where there is one."""
    found = {"peak_memory_mb": round(peak_memory_mb(), 1)}
    if device == "cuda":
        found["device_peak_memory_mb"] = round(torch.cuda.max_memory_allocated() / 1e6, 1)
    return found


def _training_dtype(regime: FullRegime | LoraRegime, plan: Plan) -> torch.dtype:
    """Return the type of the weights that the trainer is given.

    Full fine-tuning rounds small updates away without fp32 weights; DeepSpeed keeps those itself.
    Under LoRA the base is frozen.
    """
    if isinstance(regime, LoraRegime) or "deepspeed" in plan.arguments:
        return torch_dtype(regime.dtype)
    return torch_dtype(regime.weights_dtype)


def _trainer(
    settings: FinetuneStage,
    regime: FullRegime | LoraRegime,
    plan: Plan,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    data: Sequences,
    work_dir: Path,
    device: str,
) -> CompletionTrainer:
    import datasets
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from trl import SFTConfig
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    args = SFTConfig(
        output_dir=str(work_dir),
        num_train_epochs=regime.epochs,
        learning_rate=regime.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=regime.warmup_ratio,
        weight_decay=regime.weight_decay,
        max_grad_norm=regime.max_grad_norm,
        bf16=regime.dtype == "bfloat16",
        use_cpu=device == "cpu",
        seed=settings.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no" if plan.launched else "steps",
        save_steps=regime.save_steps,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=device == "cuda",
        max_length=None,
        pad_to_multiple_of=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        # a copy: the trainer fills in its own defaults
        **copy.deepcopy(dict(plan.arguments)),
    )
    if args.n_gpu > 1:
        # two visible GPUs must not halve the number of updates: one process uses one device
        args._n_gpu = 1
    if args.fsdp_plugin_args is not None and regime.dtype == "bfloat16":
        # accelerate's own policy would also sum gradients and return the loss in bf16
        args.fsdp_plugin_args["mixed_precision_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    add_completion_loss(model)
    trainer = CompletionTrainer(
        model=model,
        args=args,
        train_dataset=datasets.Dataset.from_dict({"input_ids": data.input_ids, "labels": data.labels}),
        data_collator=DataCollatorForLanguageModeling(pad_token_id=tokenizer.pad_token_id),
        processing_class=tokenizer,
        # the adapter is drawn inside, right after the trainer has set the seed
        peft_config=_lora_config(regime) if isinstance(regime, LoraRegime) else None,
        callbacks=[NoFinalCheckpoint(), ProgressBar(f"{settings.regime} {settings.split}")],
        order=LengthGroupedOrder(data.lengths, regime.per_device_batch_size, settings.seed),
        name=f"{settings.regime}/{settings.split}",
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _lora_config(regime: LoraRegime) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=regime.rank,
        lora_alpha=regime.alpha,
        lora_dropout=regime.dropout,
        target_modules=list(regime.target_modules),
        bias="none",
        task_type="CAUSAL_LM",
    )


def _check_adapted(model: Any, regime: LoraRegime) -> int:
    """Return the number of adapted modules, which must be targets times layers."""
    names = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
    layers = model.config.get_text_config().num_hidden_layers
    for target in regime.target_modules:
        found = sum(name.rpartition(".")[2] == target for name in names)
        if found != layers:
            raise UserError(f"key 'target_modules': {target!r} is in {found} of {layers} layers: correct the name")
    return len(names)


def _resume_point(settings: FinetuneStage, data: Sequences, reference: Path, work_dir: Path) -> str | None:
    prepare_work(work_dir, _fingerprint(settings, data, reference))
    found = latest_checkpoint(work_dir)
    return str(found) if found else None


def _fingerprint(settings: FinetuneStage, data: Sequences, reference: Path) -> dict[str, Any]:
    """Return what a resumable state depends on."""
    manifest = reference / "manifest.json"
    recorded = read_json(manifest).get("weights_sha256") if manifest.is_file() else None
    return {
        "settings": settings.model_dump(mode="json"),
        "sequences": hashlib.sha256(json.dumps([data.input_ids, data.labels]).encode()).hexdigest(),
        "reference": recorded or weight_hashes(reference),
        "versions": versions(),
        "threads": torch.get_num_threads(),
    }
