# Look-ups of what is fetched, and of the splits made of it.


def hub_is_open(source):
    """The preflight's table, which a job that fetches waits for; a newer one fetches nothing again."""
    return (
        [ancient(f"{RESULTS}/preflight.json")] if source.kind in ("hub", "url") else []
    )


def model_files(folder):
    """Files of a user's model or adapter that count, as far as they are there: a job that reads it waits for them.

    Files of weights are held by their time stamps: to hash gigabytes takes longer than to plan a run.
    """
    names = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]
    return sorted({str(path) for name in names for path in Path(folder).glob(name)})


def model_source(source):
    """What a job that acquires a model waits for."""
    return model_files(source.path) if source.kind == "local" else hub_is_open(source)


def fetched(*names):
    """Files that vouch for data sets which the run fetches."""
    return [
        f"{RESULTS}/data/{name}/manifest.json"
        for name in names
        if name in CONFIG.fetched()
    ]


def guard_manifest(guard):
    return f"{RESULTS}/guards/{guard}/manifest.json"


def prepare_settings():
    return slices.prepare_slice(CONFIG) if CONFIG.prepared_splits() else ""


def prepare_content():
    """Hashes of a local train file or folder, and of a user's synthetic examples."""
    synthetic = CONFIG.splits.harmful.synthetic
    files = [] if fetched("wildguardmix") else [CONFIG.data_path("wildguardmix")]
    files += [synthetic.path] if synthetic and synthetic.kind == "file" else []
    return [content(file) for file in files if file]


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
