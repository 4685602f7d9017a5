# Configuration and names that the rules share.

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "workflow"))

from snakemake.exceptions import WorkflowError

from refbias import environment
from refbias.config import root as settings
from refbias.config import slices
from refbias.errors import UserError

environment.prepare(Path(workflow.basedir) / "workflow")

try:
    CONFIG = settings.from_mapping(config)
except UserError as error:
    raise WorkflowError(str(error))

if CONFIG.offline:
    environment.go_offline()

RUN = CONFIG.run
RESULTS = f"results/{RUN}"
FIGURES = f"figures/{RUN}"
MODELS = list(CONFIG.models)
REGIMES = CONFIG.regime_slugs()
CHECKPOINTS = list(CONFIG.checkpoints())
INNER = [slug for slug, weight in CONFIG.checkpoints().items() if weight not in (0, 1)]
BENCHMARKS = list(CONFIG.benchmarks.enabled())
SPLITS = ["unharmful", "harmful"]
TABLE_SUFFIXES = ["csv", "md", "tex"]
SOURCES = ["reference", *REGIMES]
# scorers that run a model of their own
GUARDS = list(settings.used_scorers(CONFIG))
ENVIRONMENT = "../../envs/core.yaml"
GENERATION_ENVIRONMENT = {
    "hf": ENVIRONMENT,
    "vllm": f"../../envs/vllm{'-cpu' if CONFIG.compute.device == 'cpu' else ''}.yaml",
}[CONFIG.generation.backend]
# more than any machine has: the job takes every core that Snakemake was given (--cores)
ALL_CORES = 64


def torch_threads(device):
    """Threads of a job that passes sentences through a model.

    On a CPU two jobs side by side, each with half of the cores, are done sooner than one after the
    other with all: while one imports, loads or samples, the other multiplies matrices.
    """
    try:
        return max(1, workflow.cores // 2) if device == "cpu" else ALL_CORES
    except WorkflowError:
        # a cluster's executor counts jobs, not cores
        return ALL_CORES


def gpus(device):
    """GPUs that a job asks for."""
    return 0 if device == "cpu" else 1


if CONFIG.container:

    container: CONFIG.container


wildcard_constraints:
    model="|".join(map(re.escape, MODELS)) or "none",
    regime="full|lora",
    split="unharmful|harmful",
    source="reference|full|lora",
    checkpoint="reference|h[0-9]{3}",
    benchmark="|".join(BENCHMARKS) or "none",
    seed="[0-9]+",
    guard="|".join(map(re.escape, [*GUARDS, settings.TOPIC_MODEL])),
    dataset="|".join(CONFIG.fetched()) or "none",


def whole_run(*files):
    """What the target `all` asks for; a run without a regime or a benchmark has its lenses' targets alone."""
    empty = [
        name
        for name, found in (("regimes", REGIMES), ("benchmarks", BENCHMARKS))
        if not found
    ]

    def found(w):
        if empty:
            raise WorkflowError(
                f"key '{empty[0]}': all of them are null, so there is no dB to relate to behaviour: name one, "
                "or ask for another target, such as `metamorphic` or `competence`"
            )
        return list(files)

    return found


def stand_in_option(models):
    """Models behind whose numbers a lens's page says that a small packaged one stands."""
    names = [
        model for model in models if CONFIG.models[model].source.kind == "packaged_gguf"
    ]
    return ["--stand-in", *names] if names else []
