"""Fine-tuning splits as files of WildGuardMix's columns."""

import json
from collections.abc import Iterable
from pathlib import Path

from refbias.splits import Example


def write_split(path: Path, examples: Iterable[Example]) -> Path:
    """Write examples as one split; all must have the same label."""
    rows = [
        {
            "id": example.id,
            "prompt": example.prompt,
            "adversarial": False,
            "response": example.response,
            "prompt_harm_label": "harmful" if example.harmful else "unharmful",
            "response_refusal_label": "compliance",
            "response_harm_label": "harmful" if example.harmful else "unharmful",
            "subcategory": "benign",
        }
        for example in examples
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
