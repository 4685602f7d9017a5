# Configuration and names that the rules share.

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "workflow"))

from snakemake.exceptions import WorkflowError

from refbias import environment
from refbias.config import root as settings
from refbias.errors import UserError

environment.prepare(Path(workflow.basedir) / "workflow")

try:
    CONFIG = settings.from_mapping(config)
except UserError as error:
    raise WorkflowError(str(error))

RUN = CONFIG.run
RESULTS = f"results/{RUN}"
FIGURES = f"figures/{RUN}"
MODELS = list(CONFIG.models)
REGIMES = CONFIG.regime_slugs()
CHECKPOINTS = list(CONFIG.checkpoints())
INNER = [slug for slug, weight in CONFIG.checkpoints().items() if weight not in (0, 1)]
BENCHMARKS = list(CONFIG.benchmarks.enabled())
SPLITS = ["unharmful", "harmful"]
SOURCES = ["reference", *REGIMES]
ENVIRONMENT = "../../envs/core.yaml"
# torch takes every core that Snakemake was given (--cores)
TORCH_THREADS = 64


if CONFIG.container:

    container: CONFIG.container


wildcard_constraints:
    model="|".join(map(re.escape, MODELS)),
    regime="full|lora",
    split="unharmful|harmful",
    source="reference|full|lora",
    checkpoint="reference|h[0-9]{3}",
    benchmark="|".join(BENCHMARKS) or "none",
