# Look-ups that the rules share: where files lie, and what else a job's parameters hold.

from refbias import artifacts, codehash, resources
from refbias.benchmarks import wildguardmix


def code(stage):
    """Hash of the code that a stage uses: an edit elsewhere, or of a comment, reruns nothing."""
    return codehash.code_hash(f"refbias.cli.{stage}")


def content(user_file, *shipped):
    """Hash of a user's file or folder, or of a shipped one where none is named.

    Data enter as a hash, not as an input file: a fresh checkout's newer time stamps must not
    rerun results that were copied into it.
    """
    path = Path(user_file) if user_file else resources.data_path(*shipped)
    return artifacts.sha256_tree(path)[:16] if path.exists() else "absent"


def endpoint(model, regime, split):
    """Folder of a trained, or of the user's ready-made, endpoint."""
    ready = getattr(CONFIG.models[model].endpoints, regime)
    return (
        getattr(ready, split)
        if ready
        else f"{RESULTS}/training/{model}/{regime}/{split}"
    )


def endpoint_done(model, regime, split):
    """File that vouches for an endpoint."""
    if getattr(CONFIG.models[model].endpoints, regime):
        name = "config.json" if regime == "full" else "adapter_config.json"
        return f"{endpoint(model, regime, split)}/{name}"
    return f"{endpoint(model, regime, split)}/manifest.json"


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
        return [endpoint_done(model, regime, "harmful" if weight else "unharmful")]
    folder = checkpoint_dir(model, regime, checkpoint)
    return [f"{folder}/manifest.json"] + (
        [f"{folder}/model.safetensors"] if regime == "full" else []
    )


def split_file(split):
    return getattr(CONFIG.splits, split).file


def earlier_merge_was_used(w):
    """Manifests of the jobs that read the merge which must be gone before this one is made."""
    at = INNER.index(w.checkpoint) - CONFIG.spectrum.max_merged
    return (
        [f"{RESULTS}/generations/{w.model}/full/{INNER[at]}/manifest.json"]
        if at >= 0
        else []
    )


def spectrum_endpoints(w):
    if w.source == "reference":
        return []
    return [endpoint_done(w.model, w.source, split) for split in SPLITS]


def endpoint_options(w):
    if w.source == "reference":
        return []
    return [
        part
        for split in SPLITS
        for part in (f"--{split}", endpoint(w.model, w.source, split))
    ]


def stimuli_content():
    chosen = CONFIG.stimuli
    files = [
        chosen.groups_file,
        chosen.targets_file,
        chosen.attributes_file,
        chosen.anchors_file,
        chosen.control_file,
    ]
    names = [
        "groups.tsv",
        "targets.tsv",
        "attributes.tsv",
        "anchors.tsv",
        "control.tsv",
    ]
    return [content(file, "stimuli", name) for file, name in zip(files, names)]


def prompt_content():
    names = {
        "wildguardmix": [("wildguardmix_test.jsonl",)],
        "decodingtrust": [
            ("decodingtrust_user_prompts.csv",),
            ("decodingtrust_system_prompts.csv",),
        ],
        "toxigen": [("toxigen",)],
    }
    found = {
        benchmark: [
            content(chosen.prompts, "quickstart", *name) for name in names[benchmark]
        ]
        for benchmark, chosen in CONFIG.benchmarks.enabled().items()
    }
    mapped = CONFIG.benchmarks.wildguardmix
    if mapped is not None and mapped.topics_file:
        found["topics"] = [content(mapped.topics_file)]
    return found


def topic_map():
    """Topic map that the run makes: where neither the prompts nor a file of the user say the topics."""
    chosen = CONFIG.benchmarks.wildguardmix
    if chosen is None or chosen.topics_file or wildguardmix.has_topics(chosen.prompts):
        return None
    return f"{RESULTS}/topics/topics.csv"


def topics_content():
    return [
        content(CONFIG.benchmarks.wildguardmix.prompts, "quickstart"),
        content(CONFIG.topics.words_file, "topics", "words.tsv"),
        content(None, "topics", "labelled_prompts.tsv"),
        content(CONFIG.stimuli.groups_file, "stimuli", "groups.tsv"),
    ]


def guard_manifest(guard):
    return f"{RESULTS}/guards/{guard}/manifest.json"


def topic_model():
    return (
        [guard_manifest(settings.TOPIC_MODEL)] if CONFIG.topics.mapper == "llm" else []
    )


def scorer_content():
    files = [
        ("standin", "sentences.tsv"),
        ("standin", "outputs.jsonl"),
        ("benchmarks", "agreement_phrases.json"),
    ]
    prompt_files = [
        getattr(chosen, "prompt_file", None)
        for chosen in settings.used_scorers(CONFIG).values()
    ]
    return [content(None, *file) for file in files] + [
        content(file) for file in prompt_files if file
    ]


def audited_checkpoint(w):
    return (
        []
        if w.source == "reference"
        else checkpoint_files(w.model, w.source, w.checkpoint)
    )


def checkpoint_option(w):
    return (
        []
        if w.source == "reference"
        else ["--checkpoint", checkpoint_dir(w.model, w.source, w.checkpoint)]
    )


def generated(w):
    slugs = ["reference"] if w.source == "reference" else CHECKPOINTS
    return expand(
        f"{RESULTS}/generations/{w.model}/{w.source}/{{slug}}/manifest.json", slug=slugs
    )


def losses():
    return {
        f"{model}/{regime}/{split}": f"{RESULTS}/training/{model}/{regime}/{split}/loss.csv"
        for model in MODELS
        for regime in REGIMES
        for split in SPLITS
        if not getattr(CONFIG.models[model].endpoints, regime)
    }


def figure_names(*kinds):
    """Names of the figures of some kinds, or of all."""
    names = []
    for kind in kinds or ("figure2", "roc", "auc_threshold", "spectrum", "loss"):
        if kind == "loss":
            names += [
                f"loss_{model}"
                for model in MODELS
                if any(key.startswith(f"{model}/") for key in losses())
            ]
        else:
            names += [
                f"{kind}_{model}_{regime}" for model in MODELS for regime in REGIMES
            ]
    return names


def manifests():
    """Every stage's manifest, by stage and place, for the report's account of settings and cost."""
    found = {
        "shift": f"{RESULTS}/shift/manifest.json",
        "analyse": f"{RESULTS}/tables/manifest.json",
    }
    for model in MODELS:
        found[f"acquire/{model}"] = f"{RESULTS}/models/{model}/manifest.json"
        for source in SOURCES:
            found[f"represent/{model}/{source}"] = (
                f"{RESULTS}/embeddings/{model}/{source}/manifest.json"
            )
            found[f"score/{model}/{source}"] = (
                f"{RESULTS}/scores/{model}/{source}/manifest.json"
            )
            for slug in ["reference"] if source == "reference" else CHECKPOINTS:
                found[f"generate/{model}/{source}/{slug}"] = (
                    f"{RESULTS}/generations/{model}/{source}/{slug}/manifest.json"
                )
        if "full" in REGIMES:
            for slug in INNER:
                found[f"merge/{model}/full/{slug}"] = (
                    f"{RESULTS}/spectrum/{model}/full/{slug}/manifest.json"
                )
        if "lora" in REGIMES:
            for slug in INNER:
                found[f"merge/{model}/lora/{slug}"] = (
                    f"{RESULTS}/spectrum/{model}/lora/{slug}/manifest.json"
                )
    for guard in GUARDS:
        found[f"acquire_guard/{guard}"] = guard_manifest(guard)
    if topic_map():
        found["topics"] = f"{RESULTS}/topics/manifest.json"
    for key, path in losses().items():
        found[f"training/{key}"] = path.replace("loss.csv", "manifest.json")
    return found
