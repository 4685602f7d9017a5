# Look-ups of the ablations and of the repeated fine-tunings.


def fetched_anchors(*names):
    """What the collection of sentences waits for: the data sets that are fetched for anchors."""
    files = CONFIG.anchor_files()
    return fetched(
        *(name for name in names or files if files[name] == CONFIG.data_path(name))
    )


def variants_content():
    """Hash of the folder of a user's variants, whose first sentences a table shows."""
    folder = CONFIG.ablations.variants_dir if CONFIG.ablations else None
    return [content(folder)] if folder else []


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


def training_seeds_table():
    """The table of the repeated fine-tunings, where there are any."""
    return [f"{RESULTS}/ablations/training_seeds.csv"] if CONFIG.training_seeds else []


def ablations_of_the_paper():
    """Ablations that the paper's tables and figures need and this run has: the first model's, in full fine-tuning."""
    names = {"training_seeds"} if CONFIG.training_seeds else set()
    if "full" in CONFIG.ablated().get(MODELS[0], []):
        names |= set(CONFIG.ablations.run)
    return sorted(names)
