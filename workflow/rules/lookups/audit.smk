# Look-ups of an audit: the files that it depends on.

AUDITED = [CONFIG.audit.reference, *CONFIG.audit.audited]


def audited_files():
    """Weights and configurations of the models that are local files or folders; the hub's are known by their name.

    A weighted sum names its files itself: what stands between its signs.
    """
    found = []
    for spec in AUDITED:
        for term in [spec, *re.split(r"\+|\*", spec)]:
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
