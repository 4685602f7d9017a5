# Look-ups of endpoints and merges: where they lie, and what a job that reads one waits for.


def endpoint(model, regime, split):
    """Folder of a trained, or of the user's ready-made, endpoint."""
    ready = getattr(CONFIG.models[model].endpoints, regime)
    return (
        getattr(ready, split)
        if ready
        else f"{RESULTS}/training/{model}/{regime}/{split}"
    )


def endpoint_done(model, regime, split):
    """Files that vouch for an endpoint: the manifest of a trained one, all that counts of a ready-made one."""
    folder = endpoint(model, regime, split)
    if getattr(CONFIG.models[model].endpoints, regime):
        name = "config.json" if regime == "full" else "adapter_config.json"
        return sorted({f"{folder}/{name}", *model_files(folder)})
    return [f"{folder}/manifest.json"]


def endpoint_options(w):
    if w.source == "reference":
        return []
    return [
        part
        for split in SPLITS
        for part in (f"--{split}", endpoint(w.model, w.source, split))
    ]


def spectrum_endpoints(w):
    if w.source == "reference":
        return []
    return [
        file for split in SPLITS for file in endpoint_done(w.model, w.source, split)
    ]


def checkpoint_dir(model, regime, checkpoint):
    """Folder of a checkpoint: an endpoint itself, or a merge."""
    weight = CONFIG.checkpoints()[checkpoint]
    if weight in (0, 1):
        return endpoint(model, regime, "harmful" if weight else "unharmful")
    return f"{RESULTS}/spectrum/{model}/{regime}/{checkpoint}"


def checkpoint_files(model, regime, checkpoint):
    """Files that a job which reads a checkpoint waits for."""
    weight = CONFIG.checkpoints()[checkpoint]
    if weight in (0, 1):
        return endpoint_done(model, regime, "harmful" if weight else "unharmful")
    folder = checkpoint_dir(model, regime, checkpoint)
    return [f"{folder}/manifest.json"] + (
        [f"{folder}/model.safetensors"] if regime == "full" else []
    )


def earlier_merge_was_used(w):
    """Manifests of the jobs that read the merge which must be gone before this one is made."""
    at = INNER.index(w.checkpoint) - CONFIG.spectrum.max_merged
    return (
        [f"{RESULTS}/generations/{w.model}/full/{INNER[at]}/manifest.json"]
        if at >= 0
        else []
    )


def regime_device(regime):
    """Device that a regime trains on."""
    return getattr(CONFIG.regimes, regime).device


def training_gpus(regime):
    """GPUs of one fine-tuning: one, or as many as a memory plan shares."""
    shared = CONFIG.regimes.full.processes if regime == "full" else 1
    return shared * gpus(regime_device(regime))


def losses():
    return {
        f"{model}/{regime}/{split}": f"{RESULTS}/training/{model}/{regime}/{split}/loss.csv"
        for model in MODELS
        for regime in REGIMES
        for split in SPLITS
        if not getattr(CONFIG.models[model].endpoints, regime)
    }


# with dB measured on the way, a stage of its own: what measures is no code of plain fine-tuning
TRAINING_STAGE = "finetune_watched" if CONFIG.bias_shift else "finetune"


def training_settings(w):
    """Slice of a spectrum's fine-tuning."""
    of_stage = getattr(slices, f"{TRAINING_STAGE}_slice")
    return of_stage(CONFIG, w.model, w.regime, w.split)


def training_content(w):
    """Hash of the split, and of the sentence files where they are measured during the training."""
    split = split_content(w)
    return [split, *stimuli_content()] if CONFIG.bias_shift else split


def watched(path):
    """A file that there is where dB is measured during the training."""
    return [path] if CONFIG.bias_shift else []
