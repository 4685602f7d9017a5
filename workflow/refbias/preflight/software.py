"""What must be installed beside the environment: the vLLM interpreter, the guard's input text."""

from collections.abc import Callable, Iterator

from refbias.config.generation import INTERPRETERS
from refbias.config.root import Config, used_scorers
from refbias.config.scorers import WildGuardSettings
from refbias.environment import find_interpreter
from refbias.errors import UserError
from refbias.preflight.rows import MISSING, OK, Row
from refbias.scorers.wildguard_format import load_format


def software_rows(config: Config, gpu: bool) -> list[Row]:
    """Return a row for each interpreter (where this machine is to generate) and each guard's input text."""
    rows = []
    for key, name, check in _checks(config, gpu):
        try:
            rows.append(Row("software", name, OK, check(), key=key))
        except UserError as error:
            rows.append(Row("software", name, MISSING, str(error), f"install it, or correct `{key}`", key))
    return rows


def _checks(config: Config, gpu: bool) -> Iterator[tuple[str, str, Callable[[], str]]]:
    used = used_scorers(config)
    guards = {name: settings for name, settings in used.items() if isinstance(settings, WildGuardSettings)}
    place = config.generation.python()
    if any(guard.backend == "vllm" for guard in guards.values()):
        place = place or INTERPRETERS["vllm"]
    if place is not None and gpu:
        yield "generation.interpreter", "vLLM", lambda: f"interpreter {find_interpreter(place)}"
    for name, guard in guards.items():
        file = guard.prompt_file
        yield f"scorers.{name}.prompt_file", file or "package wildguard 1.0.1", _text(file, name)


def _text(file: str | None, name: str) -> Callable[[], str]:
    return lambda: f"input text, SHA-256 {load_format(file, name).sha256[:16]}"
