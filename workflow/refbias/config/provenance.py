"""What the account of a run's origin needs to know."""

from typing import Any

from refbias.config.base import Strict


class ProvenanceStage(Strict):
    """Slice of the configuration that the stage `provenance` sees.

    `config` is the whole configuration, `config_file` the file it was read from, relative to the working folder;
    `lacks` maps every table and figure of the paper to what the run lacks for it.
    """

    run: str
    seed: int
    models: list[str]
    config: dict[str, Any]
    config_file: str
    lacks: dict[str, str]
