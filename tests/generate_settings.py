"""What the stage `generate` sees of a small run of all benchmarks."""

from typing import Any

from refbias.config.root import from_mapping
from refbias.config.slices import generate_slice


def generate_settings(**changes: Any) -> str:
    """Return the slice of a run on the CPU, with some sections replaced or added."""
    benchmark = {"samples": 2, "max_new_tokens": 6, "prompts_per_unit": 1}
    config = from_mapping(
        {
            "run": "t",
            "models": {"tiny": {"source": {"kind": "local", "path": "unused"}, "chat_format": "plain"}},
            "compute": {"device": "cpu", "dtype": "float32"},
            "benchmarks": {
                "wildguardmix": benchmark,
                "toxigen": benchmark,
                "decodingtrust": {**benchmark, "system_prompts": ["benign"], "repeat_task": False},
            },
            **changes,
        }
    )
    return generate_slice(config, "tiny")
