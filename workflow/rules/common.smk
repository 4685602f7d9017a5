# Configuration, look-ups and parameters that the rules share.

import os
import sys
from pathlib import Path

# the interpreter that runs Snakemake runs the stages; a rule's conda environment goes before it
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(workflow.basedir) / "workflow"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
sys.path.insert(0, str(Path(workflow.basedir) / "workflow"))

from snakemake.exceptions import WorkflowError

from refbias import artifacts, codehash, resources
from refbias.config import root as settings
from refbias.errors import UserError

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
BENCHMARKS = list(CONFIG.benchmarks.enabled())
SPLITS = ["unharmful", "harmful"]
SOURCES = ["reference", *REGIMES]
ENVIRONMENT = "../../envs/core.yaml"
# torch takes every core that Snakemake was given (--cores)
TORCH_THREADS = 64


wildcard_constraints:
    model="|".join(MODELS),
    regime="full|lora",
    split="unharmful|harmful",
    source="reference|full|lora",
    checkpoint="h[0-9]{3}",
    benchmark="|".join(BENCHMARKS) or "none",


def code(stage):
    """Hash of the code that a stage uses: an edit elsewhere, or of a comment, reruns nothing."""
    return codehash.code_hash(f"refbias.cli.{stage}")


def content(user_file, *shipped):
    """Hash of a user's file or folder, or of a shipped one where none is named.

    Data enter as a hash, not as an input file: a fresh checkout's newer time stamps must not
    rerun results that were copied into it.
    """
    path = Path(user_file) if user_file else resources.data_path(*shipped)
    return artifacts.sha256_tree(path)[:16] if path.exists() else "absent"


def endpoint(model, regime, split):
    """Folder of a trained, or of the user's ready-made, endpoint."""
    ready = getattr(CONFIG.models[model].endpoints, regime)
    return getattr(ready, split) if ready else f"{RESULTS}/training/{model}/{regime}/{split}"


def endpoint_done(model, regime, split):
    """File that vouches for an endpoint."""
    if getattr(CONFIG.models[model].endpoints, regime):
        name = "config.json" if regime == "full" else "adapter_config.json"
        return f"{endpoint(model, regime, split)}/{name}"
    return f"{endpoint(model, regime, split)}/manifest.json"


def checkpoint_dir(model, regime, checkpoint):
    """Folder of a checkpoint: an endpoint itself, or a merge."""
    weight = CONFIG.checkpoints()[checkpoint]
    if weight in (0, 1):
        return endpoint(model, regime, "harmful" if weight else "unharmful")
    return f"{RESULTS}/spectrum/{model}/{regime}/{checkpoint}"


def checkpoint_files(model, regime, checkpoint):
    """Files that a job which reads a checkpoint waits for."""
    weight = CONFIG.checkpoints()[checkpoint]
    if weight in (0, 1):
        return [endpoint_done(model, regime, "harmful" if weight else "unharmful")]
    folder = checkpoint_dir(model, regime, checkpoint)
    return [f"{folder}/manifest.json"] + ([f"{folder}/model.safetensors"] if regime == "full" else [])
