# Look-ups of the competence lens: where a subject lies, what its stages wait for.

COMPETENCE = f"{RESULTS}/competence"
SUBJECTS = CONFIG.competence_subjects()
SUBJECT = "|".join(map(re.escape, SUBJECTS))
STEERED = SUBJECTS if CONFIG.competence.steering.subjects == "all" else ["reference"]


def subject_regime(w):
    """Regime of a subject between two endpoints; None for the reference."""
    regime, _, checkpoint = w.subject.partition("-")
    return regime if checkpoint else None


def subject_files(w):
    """Files that vouch for the model under test; a merge is made in memory, from its two endpoints."""
    regime = subject_regime(w)
    ends = [
        file
        for split in SPLITS
        for file in (endpoint_done(w.model, regime, split) if regime else [])
    ]
    return [f"{RESULTS}/models/{w.model}/manifest.json", *ends]


def subject_options(w):
    regime = subject_regime(w)
    if regime is None:
        return []
    return [
        part
        for split in SPLITS
        for part in (f"--{split}", endpoint(w.model, regime, split))
    ]


def reference_direction(w):
    """Direction of the reference, whose layer the others are read at."""
    own = w.subject == "reference"
    return [] if own else [f"{COMPETENCE}/{w.model}/reference/direction.json"]


def direction_option(w):
    own = w.subject == "reference"
    return [] if own else ["--direction-of", f"{COMPETENCE}/{w.model}/reference"]


def steering_file(w):
    """Steering of the reference, where it bounds how far applicants' states are moved."""
    left = CONFIG.competence.hiring.alpha == "auto"
    return [f"{COMPETENCE}/{w.model}/reference/steering.json"] if left else []


def steering_option(w):
    folder = f"{COMPETENCE}/{w.model}/reference"
    return ["--steering-of", folder] if steering_file(w) else []


def competence_content():
    """Hashes of the lens's files, the list of easy words among them where a user names one."""
    own = CONFIG.competence.data
    files = [value for name, value in own if name != "unequal_pairs" and value]
    return [content(None, "competence"), *(content(file) for file in files)]


def axis_files():
    """Results of steering along the axis of dB, where the run asks for it."""
    if CONFIG.competence.axis is None:
        return []
    return [f"{COMPETENCE}/{model}/reference/axis.csv" for model in MODELS]


def steered_files():
    return [
        f"{COMPETENCE}/{model}/{subject}/steering.csv"
        for model in MODELS
        for subject in STEERED
    ]


def analysed_files():
    return [
        f"{COMPETENCE}/{model}/{subject}/verdicts.json"
        for model in MODELS
        for subject in SUBJECTS
    ]
