"""One fine-tuning run: from a reference model and a split to weights and a loss curve.

Full fine-tuning changes every weight; LoRA adds a low-rank change to linear layers of the language
tower. Training in bfloat16 keeps fp32 weights and computes in bf16; the result is saved in bf16
(an adapter always in fp32: it is small, and merges add it in fp32).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.trainer_callback import PrinterCallback

from refbias.artifacts import read_json, versions, write_json, write_rows
from refbias.config.finetune import FinetuneStage, FullRegime, LoraRegime
from refbias.errors import UserError
from refbias.finetune.data import LengthGroupedOrder, Sequences, tokenize_examples
from refbias.finetune.loss import add_completion_loss
from refbias.finetune.trainer import CompletionTrainer, NoFinalCheckpoint, ProgressBar, prepare_work
from refbias.models.files import copy_side_files, weight_hashes
from refbias.models.heap import keep_freed_memory
from refbias.models.load import cast_parameters, load_lm, load_tokenizer, resolve_device, torch_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from refbias.splits import Example

LOSS_COLUMNS = ("step", "epoch", "loss", "learning_rate", "grad_norm")


def finetune(
    settings: FinetuneStage, examples: Sequence["Example"], reference: Path | str, out_dir: Path, work_dir: Path
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

    Returns
    -------
    dict
        Facts for the manifest (JSON values).

    Raises
    ------
    UserError
        If a loss or gradient is not finite, no example fits, or a target module does not exist.
    """
    regime = settings.full if settings.regime == "full" else settings.lora
    if regime is None:
        raise UserError(f"--settings: regime {settings.regime!r} has no hyperparameters")
    device = resolve_device(regime.device)
    if device == "cpu":
        keep_freed_memory()
    tokenizer = load_tokenizer(reference)
    data = tokenize_examples(tokenizer, examples, settings.chat_format, regime.max_length)
    transformers.set_seed(settings.seed)
    model = load_lm(reference, dtype=_training_dtype(regime), device="cpu").train().requires_grad_(True)
    trainer = _trainer(settings, regime, model, tokenizer, data, work_dir, device)
    adapted = _check_adapted(trainer.model, regime) if isinstance(regime, LoraRegime) else 0
    trainer.train(resume_from_checkpoint=_resume_point(settings, data, Path(reference), work_dir))
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    _save(trainer.model, regime, Path(reference), out_dir)
    write_rows(out_dir / "loss.csv", LOSS_COLUMNS, [[_cell(entry[key]) for key in LOSS_COLUMNS] for entry in history])
    parameters = list(trainer.model.parameters())
    return {
        "n_examples": len(examples),
        "n_dropped": data.n_dropped,
        "n_truncated": data.n_truncated,
        "n_label_tokens": sum(label != -100 for labels in data.labels for label in labels),
        "updates": trainer.state.global_step,
        "first_loss": history[0]["loss"],
        "last_loss": history[-1]["loss"],
        "adapted_modules": adapted,
        "trained_parameters": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "seed": settings.seed,
        "dtype": regime.dtype,
        "device": device,
        "n_devices": trainer.args.world_size,
        "threads": torch.get_num_threads(),
        "weights_sha256": weight_hashes(out_dir),
    }


def _cell(value: float) -> str:
    return f"{value:.10g}"


def _training_dtype(regime: FullRegime | LoraRegime) -> torch.dtype:
    """Full: fp32 weights, whatever the arithmetic, or small updates round to nothing. LoRA: the base is frozen."""
    return torch.float32 if isinstance(regime, FullRegime) else torch_dtype(regime.dtype)


def _trainer(
    settings: FinetuneStage,
    regime: FullRegime | LoraRegime,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    data: Sequences,
    work_dir: Path,
    device: str,
) -> CompletionTrainer:
    import datasets
    from trl import SFTConfig
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    args = SFTConfig(
        output_dir=str(work_dir),
        per_device_train_batch_size=regime.per_device_batch_size,
        gradient_accumulation_steps=regime.gradient_accumulation,
        num_train_epochs=regime.epochs,
        learning_rate=regime.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=regime.warmup_ratio,
        weight_decay=regime.weight_decay,
        max_grad_norm=regime.max_grad_norm,
        optim="adamw_torch_fused" if device in ("cpu", "cuda") else "adamw_torch",
        bf16=regime.dtype == "bfloat16",
        use_cpu=device == "cpu",
        seed=settings.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=regime.save_steps,
        report_to="none",
        disable_tqdm=True,
        gradient_checkpointing=False,
        dataloader_pin_memory=device == "cuda",
        max_length=None,
        pad_to_multiple_of=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    if args.n_gpu > 1:
        # two visible GPUs must not halve the number of updates: one process uses one device
        args._n_gpu = 1
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
    manifest = reference / "manifest.json"
    recorded = read_json(manifest).get("weights_sha256") if manifest.is_file() else None
    fingerprint = {
        "settings": settings.model_dump(mode="json"),
        "sequences": hashlib.sha256(json.dumps([data.input_ids, data.labels]).encode()).hexdigest(),
        "reference": recorded or weight_hashes(reference),
        "versions": versions(),
        "threads": torch.get_num_threads(),
    }
    found = prepare_work(work_dir, fingerprint)
    return str(found) if found else None


def _save(model: Any, regime: FullRegime | LoraRegime, reference: Path, out_dir: Path) -> None:
    """Write the result under a temporary name, then move it into place file by file."""
    partial = out_dir / f".saving.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if isinstance(regime, LoraRegime):
        # peft would write the path that the base was read from
        model.peft_config["default"].base_model_name_or_path = reference.name
        model.save_pretrained(partial, save_embedding_layers=False)
        wanted = {"adapter_config.json", "adapter_model.safetensors"}
        for path in list(partial.iterdir()):
            if path.name not in wanted:
                path.unlink()
        config = read_json(partial / "adapter_config.json")
        # a set, whose order differs from process to process
        config["target_modules"] = sorted(config["target_modules"])
        write_json(partial / "adapter_config.json", config)
    else:
        cast_parameters(model, torch_dtype(regime.dtype))
        model.config.dtype = torch_dtype(regime.dtype)
        model.save_pretrained(partial, max_shard_size="1000GB")
        copy_side_files(reference, partial)
    for path in sorted(partial.iterdir()):
        os.replace(path, out_dir / path.name)
    partial.rmdir()
