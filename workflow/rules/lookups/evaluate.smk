# Look-ups of prompts, topics, generation and scoring.

from snakemake.settings.types import DeploymentMethod

from refbias.benchmarks import decodingtrust, wildguardmix
from refbias.config.generation import INTERPRETERS


def data_content(name, *shipped):
    """Hash of a data set's prompts where they are a user's or ship; fetched ones are inputs."""
    path = CONFIG.prompt_files()[name]
    is_fetched = path == CONFIG.data_path(name) and name in CONFIG.fetched()
    return "fetched" if is_fetched else content(path, "quickstart", *shipped)


def decodingtrust_content():
    """Hashes of its two files; where a user names one, the other lies beside it."""
    path = CONFIG.prompt_files()["decodingtrust"]
    shipped = [f"decodingtrust_{kind}_prompts.csv" for kind in ("user", "system")]
    if path is None:
        return [data_content("decodingtrust", name) for name in shipped]
    _, *beside = decodingtrust.prompt_files(path)
    return [data_content("decodingtrust"), *(content(file) for file in beside)]


def prompt_content():
    names = {"wildguardmix": "wildguardmix_test.jsonl", "toxigen": "toxigen"}
    found = {
        benchmark: (
            [data_content(benchmark, names[benchmark])]
            if benchmark in names
            else decodingtrust_content()
        )
        for benchmark in BENCHMARKS
    }
    mapped = CONFIG.benchmarks.wildguardmix
    if mapped is not None and mapped.topics_file:
        found["topics"] = [content(mapped.topics_file)]
    return found


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


def topic_model():
    return (
        [guard_manifest(settings.TOPIC_MODEL)] if CONFIG.topics.mapper == "llm" else []
    )


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


def interpreter_option():
    """The interpreter that generates, where it is not the workflow's own; a conda environment brings its own."""
    python = CONFIG.generation.python()
    own_environment = (
        DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
    )
    return ["--python", python] if python and not own_environment else []


def generated(w):
    slugs = ["reference"] if w.source == "reference" else CHECKPOINTS
    return expand(
        f"{RESULTS}/generations/{w.model}/{w.source}/{{slug}}/manifest.json", slug=slugs
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


def guard_interpreter_option():
    """The interpreter of guards that vLLM runs, where there are any; no conda environment of a rule holds both."""
    backends = {
        getattr(scorer, "backend", "hf")
        for scorer in settings.used_scorers(CONFIG).values()
    }
    if "vllm" not in backends:
        return []
    return ["--vllm-python", CONFIG.generation.interpreter or INTERPRETERS["vllm"]]
