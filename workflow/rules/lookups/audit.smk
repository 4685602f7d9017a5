# Look-ups of an audit: the files that it depends on.

from refbias.config.audit import weighted_terms

AUDITED = [CONFIG.audit.reference, *CONFIG.audit.audited]


def audited_files():
    """Weights and configurations of the models that are local files or folders; the hub's are known by their name.

    A weighted sum names its files itself: those of its terms.
    """
    found = []
    for spec in AUDITED:
        for term in [spec, *(text for _, text in weighted_terms(spec))]:
            path = Path(term.strip()).expanduser()
            if path.is_file():
                found.append(path)
            elif term.strip() and path.is_dir():
                for folder in [path, *path.glob("checkpoint-*")]:
                    found += folder.glob("*.safetensors")
                    found += folder.glob("*config.json")
    return sorted({str(path) for path in found})


def audit_content():
    """Hashes of the sentences and of the calibration."""
    chosen = CONFIG.audit.stimuli
    own = [value for name, value in chosen if name.endswith("_file") and value]
    pack = [chosen.pack] if chosen.pack and Path(chosen.pack).exists() else []
    calibration = [CONFIG.audit.calibration] if CONFIG.audit.calibration else []
    shipped = [content(None, "stimuli"), content(None, "packs")]
    return [*(content(file) for file in [*own, *pack, *calibration]), *shipped]


def audit_results():
    """What the target `audit` asks for: the result, and the gate where conditions are set."""
    gate = ["gate.json"] if CONFIG.audit.fail_on else []
    return [f"{RESULTS}/audit/{name}" for name in ["audit.json", *gate]]
