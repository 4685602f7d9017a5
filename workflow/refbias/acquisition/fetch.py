"""A data set's files into a run's folder, whatever their source."""

from pathlib import Path
from typing import Any

from refbias.acquisition import hub, web
from refbias.artifacts import link_or_copy, sha256_file
from refbias.config.data import HubFiles, UrlFiles


def fetch(source: HubFiles | UrlFiles, out_dir: Path) -> dict[str, Any]:
    """Put the files of `source` into `out_dir`, under their own names.

    Parameters
    ----------
    source
        Files of a hub repository, or addresses with checksums.
    out_dir
        An existing folder. Files are linked from the cache (copied where links do not work).

    Returns
    -------
    dict
        Facts for the manifest (JSON values): revision or addresses, and the checksum of every file.

    Raises
    ------
    UserError
        If a file cannot be had or has the wrong checksum; names the mend.
    """
    if isinstance(source, HubFiles):
        repo = hub.Repo(source.id, source.revision, "dataset")
        found, commit = hub.files(repo, source.files, source.sha256)
        facts: dict[str, Any] = {"kind": "hub", "id": source.id, "commit": commit}
    else:
        addresses = source.addresses()
        found = {name: web.download(url, sha256) for name, (url, sha256) in addresses.items()}
        facts = {"kind": "url", "addresses": {name: url for name, (url, _) in addresses.items()}}
    for name, path in found.items():
        target = out_dir / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        link_or_copy(path, target)
    return {**facts, "files_sha256": {name: sha256_file(out_dir / name) for name in found}}
