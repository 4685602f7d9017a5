"""Slice of an audit."""

from refbias.config.root import Config
from refbias.config.slices.base import as_json


def audit_slice(config: Config) -> str:
    """Return the JSON slice of stage `audit`.

    Raises
    ------
    ValueError
        If the run has no section `audit`.
    """
    if config.audit is None:
        raise ValueError("config: no section 'audit'")
    return as_json(config.audit)
