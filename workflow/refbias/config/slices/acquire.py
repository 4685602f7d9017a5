"""Slices of what is fetched and prepared before anything trains."""

import json

from refbias.config.data import FetchStage
from refbias.config.finetune import PrepareStage
from refbias.config.models import AcquireStage
from refbias.config.root import Config, guard_source
from refbias.config.slices.base import as_json


def preflight_slice(config: Config) -> str:
    """Return the JSON of all that a run needs from outside: the whole configuration but words and statistics."""
    left_out = {"title", "note", "shift", "represent", "analysis", "bias_shift"}
    return json.dumps(config.model_dump(mode="json", exclude=left_out), sort_keys=True)


def acquire_slice(config: Config, model: str) -> str:
    """Return the JSON slice of stage `acquire`."""
    return as_json(AcquireStage(source=config.models[model].source, dtype=config.compute.dtype))


def acquire_guard_slice(config: Config, guard: str) -> str:
    """Return the JSON slice of stage `acquire` for a scorer's model, or the topic mapper's (`TOPIC_MODEL`)."""
    source = guard_source(config, guard)
    return as_json(AcquireStage.model_validate({"source": source, "dtype": config.compute.dtype}))


def fetch_slice(config: Config, name: str) -> str:
    """Return the JSON slice of stage `fetch`."""
    return as_json(FetchStage.model_validate({"name": name, "source": getattr(config.data, name).source}))


def prepare_slice(config: Config) -> str:
    """Return the JSON slice of stage `prepare`."""
    sides = config.prepared_splits()
    return as_json(
        PrepareStage.model_validate(
            {
                "sides": sides,
                "examples": config.splits.examples,
                "filters": config.splits.filters,
                "synthetic": config.splits.harmful.synthetic if "harmful" in sides else None,
                "seed": config.seed,
            }
        )
    )
