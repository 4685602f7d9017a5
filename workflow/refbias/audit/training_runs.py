"""What a trainer leaves in its folder: checkpoints by step, and the step of what it saved last."""

import re
from pathlib import Path

from refbias.artifacts import read_json

_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")


def steps_of(path: Path) -> list[tuple[int, Path]]:
    """Return step and folder of the checkpoints of a training run."""
    found = []
    for folder in path.iterdir():
        match = _CHECKPOINT.fullmatch(folder.name)
        if match and any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
            found.append((int(match[1]), folder))
    return sorted(found)


def saved_step(path: Path) -> int | None:
    """Return the step that a trainer noted beside what it saved last."""
    if not (path / "trainer_state.json").is_file():
        return None
    found = read_json(path / "trainer_state.json")
    step = found.get("global_step") if isinstance(found, dict) else None
    return step if type(step) is int and 0 <= step < 10**12 else None
