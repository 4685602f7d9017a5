# Look-ups of the metamorphic tests: who is asked what, and what a job that asks waits for.

from refbias.config import metamorphic as metamorphic_names

LENS = CONFIG.metamorphic
META = f"{RESULTS}/metamorphic"
TESTED = CONFIG.metamorphic_models()
INTERFACES = list(LENS.endpoints)
MITIGATED = TESTED if LENS.mitigation else []
# asked again with examples in front
SHOTS = ["few_shot"] if LENS.few_shot else []
# what a mitigation is weighed by beside its questions
SIDES_ASKED = ["neutral"] if MITIGATED else []
# where answers are chosen among options, none is in the model's own words
if MITIGATED and LENS.mitigation.open_questions and LENS.reading == "forced_choice":
    SIDES_ASKED.append("open")
ASKED_CHECKPOINTS = {
    "reference": [],
    "endpoints": [slug for slug in CHECKPOINTS if slug not in INNER],
    "spectra": CHECKPOINTS,
}[LENS.subjects]


def spectrum_subjects():
    return [f"{regime}-{slug}" for regime in REGIMES for slug in ASKED_CHECKPOINTS]


def questioned():
    """Folders of answers that are labelled and summed up: model, subject, reading."""
    found = []
    for model in [*TESTED, *INTERFACES]:
        found += [f"{model}/reference/{asked}" for asked in ["plain", *SHOTS]]
    for model in TESTED:
        found += [f"{model}/{subject}/plain" for subject in spectrum_subjects()]
    found += [f"{model}/mitigated/plain" for model in MITIGATED]
    return [f"{META}/answers/{place}" for place in found]


def asked_aside(*names):
    """Folders of further answers, below the reading that they belong to."""
    return [
        f"{META}/answers/{model}/{place}/{name}"
        for model in MITIGATED
        for place in [
            *(f"reference/{asked}" for asked in ["plain", *SHOTS]),
            "mitigated/plain",
        ]
        for name in SIDES_ASKED
        if name in names
    ]


def split_subject(subject):
    """Regime and checkpoint of a spectrum's subject."""
    regime, _, slug = subject.partition("-")
    return regime, slug


def is_merge(subject):
    """Whether a subject is a merge of full checkpoints, which is made for the answers alone."""
    return (
        subject not in ("reference", "mitigated")
        and split_subject(subject)[0] == "full"
        and split_subject(subject)[1] in INNER
    )


def answering_dir(w):
    """Folder of the checkpoint or adapter that answers; None for the reference."""
    if w.subject == "reference":
        return None
    if w.subject == "mitigated":
        return f"{META}/mitigation/{w.model}/checkpoint"
    regime, slug = split_subject(w.subject)
    if is_merge(w.subject):
        return f"{META}/merges/{w.model}/{slug}"
    return checkpoint_dir(w.model, regime, slug)


def answering_files(w):
    if w.subject == "reference":
        return []
    if w.subject == "mitigated" or is_merge(w.subject):
        folder = answering_dir(w)
        return [f"{folder}/manifest.json"] + (
            [f"{folder}/model.safetensors"] if is_merge(w.subject) else []
        )
    return checkpoint_files(w.model, *split_subject(w.subject))


def answering_option(w):
    folder = answering_dir(w)
    return ["--checkpoint", folder] if folder else []


def questions_of(w):
    """The sample, but for the neutral questions, which ship."""
    return (
        [] if Path(w.asked).name == "neutral" else [f"{META}/questions/questions.jsonl"]
    )


def questions_option(w):
    return [part for file in questions_of(w) for part in ("--questions", file)]


def earlier_merge_answered(w):
    """Answers of the merge which must be gone before this one is made."""
    at = INNER.index(w.checkpoint) - CONFIG.spectrum.max_merged
    return (
        [f"{META}/answers/{w.model}/full-{INNER[at]}/plain/asked.json"]
        if at >= 0
        else []
    )


def metamorphic_content():
    return [
        content(LENS.groups_file, "metamorphic", "groups.tsv"),
        content(LENS.properties_file, "metamorphic", "properties.tsv"),
    ]


def material_options():
    """Options of a command that reads groups and properties of the user."""
    files = {"--groups": LENS.groups_file, "--properties": LENS.properties_file}
    return [part for option, file in files.items() if file for part in (option, file)]


def asked_content(w):
    shots, _, side = w.asked.partition("/")
    extra = (
        [content(None, "metamorphic", "few_shot.tsv")] if shots == "few_shot" else []
    )
    extra += [content(None, "metamorphic", "neutral.tsv")] if side == "neutral" else []
    return [*metamorphic_content(), *extra]


def judge_content():
    """Hash of what names a local judge's weights."""
    folder = LENS.judge.directory
    names = ["manifest.json", "config.json"] if folder else []
    return [content(f"{folder}/{name}") for name in names]


def judge_interpreter_option():
    """The interpreter of a local judge that vLLM runs; no conda environment of a rule holds both."""
    local = LENS.judge.directory and CONFIG.generation.backend == "vllm"
    return ["--vllm-python", CONFIG.generation.python()] if local else []


def patience_option(option, interface):
    """An interface with its patience and budget, on which no answer depends."""
    return [option, interface.model_dump_json()] if interface else []


def lens_shift():
    """The table of dB, where checkpoints of the spectra are asked."""
    return [f"{RESULTS}/shift/delta_b.csv"] if TESTED and ASKED_CHECKPOINTS else []


def lens_answers():
    """What tables and figures are made of."""
    return [
        f"{META}/questions/questions.jsonl",
        *(f"{folder}/manifest.json" for folder in questioned()),
        *(f"{folder}/asked.json" for folder in asked_aside("neutral")),
        *(f"{folder}/manifest.json" for folder in asked_aside("open")),
        *(
            f"{META}/mitigation/{model}/training_set/manifest.json"
            for model in MITIGATED
        ),
    ]
