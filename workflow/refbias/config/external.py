"""What a configuration needs from outside: repositories of the hub, addresses, local paths."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from refbias.config.data import HubFiles, UrlFiles
from refbias.config.root import Config


@dataclass(frozen=True)
class HubNeed:
    """A repository at a revision: the configuration's key, the repository, its files (none = a model's own)."""

    key: str
    id: str
    revision: str
    type: Literal["model", "dataset"]
    files: tuple[str, ...] = ()
    sha256: tuple[tuple[str, str], ...] = ()


def _walk(model: BaseModel, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], BaseModel]]:
    yield path, model
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _walk(value, (*path, name))
        elif isinstance(value, dict):
            for key, item in value.items():
                if isinstance(item, BaseModel):
                    yield from _walk(item, (*path, name, str(key)))


def _used(config: Config) -> Iterator[tuple[str, BaseModel]]:
    """Yield every part of the configuration with its dotted key, without scorers that no benchmark names."""
    scorers = {entry.scorer for entry in config.benchmarks.enabled().values()}
    for path, model in _walk(config, ()):
        if path[:1] != ("scorers",) or scorers & set(path):
            yield ".".join(path), model


def hub_needs(config: Config) -> list[HubNeed]:
    """Return the repositories of the hub that a run reads, in the configuration's order, each once."""
    found: dict[tuple[str, str, tuple[str, ...]], HubNeed] = {}
    for key, part in _used(config):
        if isinstance(part, HubFiles):
            need = HubNeed(key, part.id, part.revision, "dataset", tuple(part.files), tuple(part.sha256.items()))
        elif isinstance(getattr(part, "id", None), str) and isinstance(getattr(part, "revision", None), str):
            need = HubNeed(key, str(getattr(part, "id")), str(getattr(part, "revision")), "model")  # noqa: B009
        else:
            continue
        found.setdefault((need.id, need.revision, need.files), need)
    return list(found.values())


def url_needs(config: Config) -> list[tuple[str, UrlFiles]]:
    """Return the configuration's key and the addresses of each data set that is fetched from the web."""
    return [(key, part) for key, part in _used(config) if isinstance(part, UrlFiles)]


def is_remote(config: Config) -> bool:
    """Tell whether a run fetches anything."""
    return bool(hub_needs(config) or url_needs(config))
