# Look-ups that the rules share: where files lie, and what else a job's parameters hold.

from snakemake.settings.types import DeploymentMethod

from refbias import artifacts, codehash, resources
from refbias.benchmarks import wildguardmix
from refbias.config import pictures
from refbias.config.generation import INTERPRETERS


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


def hub_is_open(source):
    """The preflight's table, which a job that fetches waits for; a newer one fetches nothing again."""
    return (
        [ancient(f"{RESULTS}/preflight.json")] if source.kind in ("hub", "url") else []
    )


def fetched(*names):
    """Files that vouch for data sets which the run fetches."""
    return [
        f"{RESULTS}/data/{name}/manifest.json"
        for name in names
        if name in CONFIG.fetched()
    ]


def data_content(name, *shipped):
    """Hash of a data set's prompts where they are a user's or ship; fetched ones are inputs."""
    path = CONFIG.prompt_files()[name]
    is_fetched = path == CONFIG.data_path(name) and name in CONFIG.fetched()
    return "fetched" if is_fetched else content(path, "quickstart", *shipped)


def prepare_settings():
    return settings.prepare_slice(CONFIG) if CONFIG.prepared_splits() else ""


def prepare_content():
    """Hashes of a local train file or folder, and of a user's synthetic examples."""
    synthetic = CONFIG.splits.harmful.synthetic
    files = [] if fetched("wildguardmix") else [CONFIG.data_path("wildguardmix")]
    files += [synthetic.path] if synthetic and synthetic.kind == "file" else []
    return [content(file) for file in files if file]


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


def regime_device(regime):
    """Device that a regime trains on."""
    return getattr(CONFIG.regimes, regime).device


def training_gpus(regime):
    """GPUs of one fine-tuning: one, or as many as a memory plan shares."""
    shared = CONFIG.regimes.full.processes if regime == "full" else 1
    return shared * gpus(regime_device(regime))


def training_seeds_table():
    """The table of the repeated fine-tunings, where there are any."""
    return [f"{RESULTS}/ablations/training_seeds.csv"] if CONFIG.training_seeds else []


def prepared(w):
    return (
        [f"{RESULTS}/splits/manifest.json"]
        if w.split in CONFIG.prepared_splits()
        else []
    )


def split_content(w):
    """Hash of a user's or the shipped split; a prepared one is an input."""
    if prepared(w):
        return "prepared"
    return content(
        CONFIG.split_file(w.split), "quickstart", f"wildguard_{w.split}.jsonl"
    )


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


# with dB measured on the way, a stage of its own: what measures is no code of plain fine-tuning
TRAINING_STAGE = "finetune_watched" if CONFIG.bias_shift else "finetune"


def training_settings(w):
    """Slice of a spectrum's fine-tuning."""
    of_stage = getattr(settings, f"{TRAINING_STAGE}_slice")
    return of_stage(CONFIG, w.model, w.regime, w.split)


def training_content(w):
    """Hash of the split, and of the sentence files where they are measured during the training."""
    split = split_content(w)
    return [split, *stimuli_content()] if CONFIG.bias_shift else split


def watched(path):
    """A file that there is where dB is measured during the training."""
    return [path] if CONFIG.bias_shift else []


def ablation_content(w):
    """Hashes of every file that the collection of the ablations' sentences may read."""
    chosen = CONFIG.ablations
    folder = chosen.variants_dir
    return [
        *stimuli_content(),
        (
            content(folder, "stimuli", "variants")
            if folder or "attributes" in chosen.run or "targets" in chosen.run
            else ""
        ),
        *(
            content(file, "stimuli", f"anchors_{name}.tsv")
            for name, file in (
                ("words", chosen.words_file),
                ("masked", chosen.masked_file),
            )
        ),
        *(
            content(file)
            for name, file in CONFIG.anchor_files().items()
            if file and not fetched_anchors(name)
        ),
    ]


def fetched_anchors(*names):
    """What the collection of sentences waits for: the data sets that are fetched for anchors."""
    files = CONFIG.anchor_files()
    return fetched(
        *(name for name in names or files if files[name] == CONFIG.data_path(name))
    )


def ablated_spectra():
    """The tables of dB by cell of every ablated model and regime."""
    return [
        f"{RESULTS}/ablations/{model}/{regime}/delta_b.csv"
        for model, regimes in CONFIG.ablated().items()
        for regime in regimes
    ]


def ablation_tables():
    """What the run's target asks for beside the report: nothing without ablations."""
    return [f"{RESULTS}/tables/ablations.csv"] if ablated_spectra() else []


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
        benchmark: [data_content(benchmark, *name) for name in names[benchmark]]
        for benchmark in BENCHMARKS
    }
    mapped = CONFIG.benchmarks.wildguardmix
    if mapped is not None and mapped.topics_file:
        found["topics"] = [content(mapped.topics_file)]
    return found


def topic_map():
    """Topic map that the run makes: where neither the prompts nor a file of the user say the topics."""
    chosen = CONFIG.benchmarks.wildguardmix
    if (
        chosen is None
        or chosen.topics_file
        or wildguardmix.has_topics(CONFIG.prompt_files()["wildguardmix"])
    ):
        return None
    return f"{RESULTS}/topics/topics.csv"


def topics_content():
    return [
        data_content("wildguardmix", "wildguardmix_test.jsonl"),
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


def prompt_sources(*benchmarks):
    """What a job that reads prompts (of some benchmarks, or all) waits for: the data sets that are fetched."""
    paths = CONFIG.prompt_files()
    return fetched(
        *(
            name
            for name in benchmarks or BENCHMARKS
            if paths[name] == CONFIG.data_path(name)
        )
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


def interpreter_option():
    """The interpreter that generates, where it is not the workflow's own; a conda environment brings its own."""
    python = CONFIG.generation.python()
    own_environment = (
        DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
    )
    return ["--python", python] if python and not own_environment else []


def guard_interpreter_option():
    """The interpreter of guards that vLLM runs, where there are any; no conda environment of a rule holds both."""
    backends = {
        getattr(scorer, "backend", "hf")
        for scorer in settings.used_scorers(CONFIG).values()
    }
    if "vllm" not in backends:
        return []
    return ["--vllm-python", CONFIG.generation.interpreter or INTERPRETERS["vllm"]]


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


def picture_tables():
    """Tables of the ablations and of the training seeds, where the run makes them."""
    tables = {"ablations": ablation_tables(), "training_seeds": training_seeds_table()}
    return {name: path for name, paths in tables.items() for path in paths}


def ablations_of_the_paper():
    """Ablations that the paper's tables and figures need and this run has: the first model's, in full fine-tuning."""
    names = {"training_seeds"} if CONFIG.training_seeds else set()
    if "full" in CONFIG.ablated().get(MODELS[0], []):
        names |= set(CONFIG.ablations.run)
    return sorted(names)


def planned(pictures):
    """Those of the paper's tables or figures that this run makes."""
    return [picture for picture in pictures if not LACKS[picture.name]]


def picture_files(name):
    """Files of one of the paper's tables or figures; asking for one that the run lacks is an error."""
    if LACKS[name]:
        raise WorkflowError(f"{name}: {LACKS[name]}")
    stem = pictures.PICTURES[name].stem
    if name.startswith("table_"):
        return [f"{RESULTS}/tables/{stem}.{suffix}" for suffix in TABLE_SUFFIXES]
    stems = figure_names("figure2") if name == "figure_2" else [stem]
    return [f"{FIGURES}/{stem}.{suffix}" for stem in stems for suffix in ("pdf", "png")]


def manifests():
    """Every stage's manifest but the pictures' own, by stage and place."""
    found = {"shift": f"{RESULTS}/shift/manifest.json"}
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


def config_file():
    """The configuration's file as a command names it, relative to the working folder where it lies inside."""
    path = Path(workflow.configfiles[-1]).absolute()
    here = Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name


ABLATIONS = ablations_of_the_paper()
LACKS = CONFIG.lacks(ABLATIONS)
