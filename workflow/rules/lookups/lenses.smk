# Look-ups of the pages that show a model's lenses together.

LENSES = f"{RESULTS}/lenses"
# what dB is about differs from the reference, which is shown where nothing else is looked at
LOOKED_AT = [subject for subject in SUBJECTS if subject != "reference"] or ["reference"]
# one page more where a regime has several points
SEVERAL = len(LOOKED_AT) > len({subject.partition("-")[0] for subject in LOOKED_AT})
LENS_PAGES = [*LOOKED_AT, *(["spectrum"] if SEVERAL else [])]


def lens_verdicts(w):
    return [f"{COMPETENCE}/{w.model}/{subject}/verdicts.json" for subject in LOOKED_AT]


def lens_shifts(w):
    """The table of dB, where a point of the spectrum is looked at."""
    return [] if LOOKED_AT == ["reference"] else [f"{RESULTS}/shift/delta_b.csv"]


def lens_summaries(w):
    """Summaries of the metamorphic answers of those subjects that the run asks."""
    asked = questioned()
    folders = [f"{META}/answers/{w.model}/{subject}/plain" for subject in LOOKED_AT]
    return [f"{folder}/summary.json" for folder in folders if folder in asked]


def lens_options(w, input):
    found = ["--delta-b", input.shift[0]] if input.shift else []
    found += ["--metamorphic", META] if input.answers else []
    groups = CONFIG.stimuli.groups_file
    return [*found, *(["--groups", groups] if groups else [])]
