"""What every slice is written with."""

import json

from pydantic import BaseModel


def as_json(model: BaseModel) -> str:
    """Return a stage's settings as JSON, the same text for the same settings."""
    return json.dumps(model.model_dump(mode="json"), sort_keys=True)
