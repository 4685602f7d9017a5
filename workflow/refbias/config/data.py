"""Where data sets come from: a hub repository, web addresses with checksums, or a local path."""

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from refbias.config.base import Strict

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _check_names(names: list[str]) -> None:
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise ValueError(f"{name!r} is no relative file name")


class HubFiles(Strict):
    """Files of a data set repository of the Hugging Face hub."""

    kind: Literal["hub"]
    id: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="Repository id, `owner/name`.")
    revision: str = Field(min_length=1, description="Commit, tag or branch; a commit hash is reproducible.")
    files: list[str] = Field(min_length=1, description="Files of the repository that are fetched.")
    sha256: dict[str, Sha256] = Field(
        default={}, description="File -> SHA-256; a file that is left out is held to the checksum that the hub states."
    )

    @model_validator(mode="after")
    def _names_are_safe(self) -> Self:
        _check_names(self.files)
        if strangers := sorted(set(self.sha256) - set(self.files)):
            raise ValueError(f"sha256 names {strangers[0]!r}, which is not in `files`")
        return self


class UrlFiles(Strict):
    """One file at an address, or several below one, each with its checksum."""

    kind: Literal["url"]
    url: str = Field(pattern=r"^https?://", description="Address of the file, or of the folder that `files` lie in.")
    sha256: Sha256 | None = Field(default=None, description="SHA-256 of the one file.")
    files: dict[str, Sha256] = Field(default={}, description="Several files: name below the address -> SHA-256.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.files) == (self.sha256 is not None):
            raise ValueError("give either `sha256` (one file) or `files` (name -> SHA-256)")
        _check_names(list(self.files))
        return self

    def addresses(self) -> dict[str, tuple[str, str]]:
        """Return file name -> (address, SHA-256)."""
        if self.sha256 is not None:
            name = re.sub(r"[?#].*", "", self.url).rstrip("/").rpartition("/")[2]
            return {name: (self.url, self.sha256)}
        return {name: (f"{self.url.rstrip('/')}/{name}", digest) for name, digest in self.files.items()}


class LocalData(Strict):
    """A file or folder in the data set's own format."""

    kind: Literal["local"]
    path: str = Field(min_length=1, description="File or folder, absolute or relative to the working folder.")


DataSource = Annotated[HubFiles | UrlFiles | LocalData, Field(discriminator="kind")]


class DataEntry(Strict):
    """One data set."""

    source: DataSource = Field(description="Where the data set comes from.")


class DataSettings(Strict):
    """The data sets of a run; one that is left out is replaced by shipped text, or not used."""

    wildguardmix: DataEntry | None = Field(
        default=None, description="WildGuardMix: fine-tuning splits from its train file, prompts from its test file."
    )
    decodingtrust: DataEntry | None = Field(default=None, description="DecodingTrust: user and system prompts.")
    toxigen: DataEntry | None = Field(default=None, description="ToxiGen: the groups' prompt files.")
    alpaca: DataEntry | None = Field(default=None, description="Alpaca: anchors of the ablation.")
    tulu: DataEntry | None = Field(default=None, description="Tulu: anchors of the ablation.")

    def entries(self) -> dict[str, DataEntry]:
        """Return name -> entry of the data sets that are given."""
        return {name: entry for name in type(self).model_fields if (entry := getattr(self, name)) is not None}


def folder_or_path(run: str, name: str, entry: DataEntry | None) -> str | None:
    """Return where a run finds a data set: the local path, or the folder that `fetch` fills; None without one."""
    if entry is None:
        return None
    return entry.source.path if isinstance(entry.source, LocalData) else f"results/{run}/data/{name}"


class FetchStage(Strict):
    """Slice of the configuration that the stage `fetch` sees."""

    name: str
    source: Annotated[HubFiles | UrlFiles, Field(discriminator="kind")]
