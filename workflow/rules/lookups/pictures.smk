# Look-ups of the pictures, and of the records that they are made of.

from refbias.config import pictures


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


def picture_tables():
    """Tables of the ablations and of the training seeds, where the run makes them."""
    tables = {"ablations": ablation_tables(), "training_seeds": training_seeds_table()}
    return {name: path for name, paths in tables.items() for path in paths}


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


ABLATIONS = ablations_of_the_paper()
LACKS = CONFIG.lacks(ABLATIONS)


# further lenses by the option of the report that shows them: the folder of their results
LENS_FOLDERS = {
    "--metamorphic": f"{RESULTS}/metamorphic",
    "--competence": f"{RESULTS}/competence",
}


def lenses_there():
    """Further lenses that an earlier target has finished; the report shows them as they lie, and asks for none."""
    return {
        option: folder
        for option, folder in LENS_FOLDERS.items()
        if Path(folder, "tables/manifest.json").exists()
        and Path(folder, "figures/manifest.json").exists()
    }


def lens_content():
    """Hashes of their tables and figures: newer ones are shown."""
    return [
        content(f"{folder}/{part}/manifest.json")
        for folder in lenses_there().values()
        for part in ["tables", "figures"]
    ]
