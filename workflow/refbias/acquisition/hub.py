"""The Hugging Face hub: pinned revisions into the client's cache, and its refusals in one line.

HF_ENDPOINT names another server, HF_TOKEN opens gated repositories, HF_HUB_OFFLINE takes everything
from the cache.
"""

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from refbias.acquisition.cache import Passing, hub_cache, is_offline, patiently
from refbias.artifacts import sha256_file
from refbias.errors import UserError

RepoType = Literal["model", "dataset"]
TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - the name of a variable
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Repo:
    """A repository at a revision."""

    id: str
    revision: str
    type: RepoType = "model"

    @property
    def page(self) -> str:
        """Page for people, where a licence is accepted."""
        return f"https://huggingface.co/{'datasets/' if self.type == 'dataset' else ''}{self.id}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a whole commit hash."""
        return _COMMIT.fullmatch(self.revision) is not None


def endpoint() -> str:
    """Return the server's address."""
    return (os.environ.get("HF_ENDPOINT", "").strip() or "https://huggingface.co").rstrip("/")


def _refusal(repo: Repo, error: BaseException) -> UserError:
    """Return what a user can do about an error of the hub's client."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    local = "or give a downloaded copy as `source: {kind: local, path: ...}`"
    if isinstance(error, GatedRepoError):
        return UserError(
            f"{repo.id}: gated: accept its licence at {repo.page} and set {TOKEN_VARIABLE} to a token that may read "
            f"it, {local}"
        )
    if isinstance(error, RevisionNotFoundError):
        return UserError(f"{repo.id}: no revision {repo.revision!r}: see {repo.page}/commits/main")
    if isinstance(error, RepositoryNotFoundError):
        return UserError(
            f"{repo.id}: not found, or private: check the id at {repo.page} and set {TOKEN_VARIABLE} if it needs one, "
            f"{local}"
        )
    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        return UserError(f"{repo.id}: a file is not there at revision {repo.revision}: see {repo.page}/tree/main")
    why = "offline" if is_offline() else f"cannot be downloaded ({type(error).__name__})"
    return UserError(
        f"{repo.id}: {why} and not in the cache at revision {repo.revision}: connect to the network (gated: licence "
        f"at {repo.page}, token in {TOKEN_VARIABLE}), {local}"
    )


def _may_pass(error: BaseException) -> bool:
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if isinstance(error, HfHubHTTPError):
        return getattr(getattr(error, "response", None), "status_code", None) in _PASSING_STATUS
    if isinstance(error, LocalEntryNotFoundError):
        # the client's word for "no answer, and nothing in the cache"
        return not is_offline() and (error.__cause__ is None or _may_pass(error.__cause__))
    return True


def _transport_error() -> type[Exception]:
    """Return what the hub client's transport raises; it names its base error so in every version."""
    from huggingface_hub.errors import HfHubHTTPError

    found: type[Exception] = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
    return found


def _ask(repo: Repo, action: Callable[[], Any]) -> Any:
    """Call the hub's client with patience; raise its refusals as `UserError`."""
    from huggingface_hub.errors import HFValidationError

    transport = _transport_error()
    # the client makes a path of it
    if any(part in ("", ".", "..") for part in repo.revision.split("/")):
        raise UserError(f"{repo.id}: {repo.revision!r} is no revision: name a branch, a tag or a commit")

    def attempt() -> Any:
        try:
            return action()
        except HFValidationError as error:
            raise _no_id(repo, error) from None
        except (OSError, transport) as error:
            if getattr(error, "errno", None) == errno.ENOSPC:
                raise
            if _may_pass(error):
                raise Passing(f"{type(error).__name__}: {error}") from error
            raise _refusal(repo, error) from None

    try:
        return patiently(attempt, repo.id)
    except Passing as error:
        raise _refusal(repo, error.__cause__ or error) from None


def _no_id(repo: Repo, error: BaseException) -> UserError:
    reason = " ".join(str(error).split())[:200].rstrip(".")
    return UserError(f"{repo.id[:100]}: no id of the hub ({reason}): write 'owner/name' as on the model's page")


def snapshot(repo: Repo, patterns: Sequence[str], ignore: Sequence[str] = ()) -> tuple[Path, str]:
    """Return a folder with the matching files of a repository, and the commit that they are of.

    Parameters
    ----------
    repo
        Repository and revision.
    patterns, ignore
        Shell patterns of the files that are wanted, and of those that are not.

    Raises
    ------
    UserError
        If the files cannot be had; names licence page, token and the local way.
    """
    from huggingface_hub import snapshot_download

    def action() -> str:
        return str(
            snapshot_download(
                repo.id,
                repo_type=repo.type,
                revision=repo.revision,
                allow_patterns=list(patterns),
                ignore_patterns=list(ignore),
                cache_dir=hub_cache(),
                endpoint=endpoint(),
                local_files_only=is_offline(),
            )
        )

    path = Path(_ask(repo, action))
    return path, path.name


def files(repo: Repo, names: Sequence[str], sha256: Mapping[str, str]) -> tuple[dict[str, Path], str]:
    """Return name -> cached file of a repository, each held to its checksum, and the commit.

    Parameters
    ----------
    repo
        Repository and revision.
    names
        Files of the repository.
    sha256
        Name -> checksum. A file that it leaves out is held to the checksum that the hub itself states
        for large files; the hub states none for small ones.

    Raises
    ------
    UserError
        If a file cannot be had, or has another checksum after a second download.
    """
    found: dict[str, Path] = {}
    commit = repo.revision
    for name in names:
        path = _file(repo, name)
        wanted = sha256.get(name) or stated_sha256(path)
        if wanted is not None and sha256_file(path) != wanted and not is_offline():
            # damaged in the cache, or on the way
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            path = _file(repo, name)
        if wanted is not None and (has := sha256_file(path)) != wanted:
            raise UserError(
                f"{repo.id}: {name}: SHA-256 is {has}, not {wanted}: another version, or damaged in the cache; "
                f"correct `sha256`, or delete {path.resolve().name} there"
            )
        found[name] = path
        # snapshots/<commit>/<name>
        commit = path.parents[len(Path(name).parts) - 1].name
    return found, commit


def _file(repo: Repo, name: str) -> Path:
    from huggingface_hub import hf_hub_download

    def action() -> str:
        return str(
            hf_hub_download(
                repo.id,
                name,
                repo_type=repo.type,
                revision=repo.revision,
                cache_dir=hub_cache(),
                endpoint=endpoint(),
                local_files_only=is_offline(),
            )
        )

    return Path(_ask(repo, action))


def stated_sha256(path: Path) -> str | None:
    """Return the SHA-256 that the hub states for a file of its cache; None for a small file.

    A snapshot's file is a link to a blob, which is named by that checksum. The blob may be a link
    itself, into a store with names of another kind.
    """
    if not path.is_symlink():
        return None
    blob = path.readlink()
    return blob.name if blob.parent.name == "blobs" and _CHECKSUM.fullmatch(blob.name) else None


@dataclass(frozen=True)
class Access:
    """What the hub says about a repository.

    `commit` is what the revision stands for now, `gated` whether a licence is asked for (None: not
    said), `problem` what keeps it shut, None where it is open, `is_reached` whether the hub answered.
    """

    commit: str | None = None
    gated: bool | None = None
    problem: str | None = None
    is_reached: bool = True


def cached_file(repo: Repo, name: str) -> Path | None:
    """Return a file of a repository that the cache holds at the revision, else None."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(
            repo.id, name, cache_dir=hub_cache(), revision=repo.revision, repo_type=repo.type
        )
    except HFValidationError:
        # an id that the hub cannot have: nothing is kept under it
        return None
    return Path(found) if isinstance(found, str) else None


def look(repo: Repo, name: str, timeout_s: float) -> Access:
    """Ask the hub whether a file of a repository can be had, without fetching it.

    Parameters
    ----------
    repo
        Repository and revision.
    name
        A file that the repository holds: a gated repository tells of itself, but gives no file.
    timeout_s
        Patience of each of the two requests, in seconds.
    """
    from huggingface_hub import HfApi, get_hf_file_metadata, get_token, hf_hub_url
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    transport = _transport_error()
    commit, gated = None, None
    try:
        info = HfApi(endpoint=endpoint()).repo_info(
            repo.id, repo_type=repo.type, revision=repo.revision, timeout=timeout_s
        )
        commit, gated = info.sha, bool(info.gated) if info.gated is not None else None
        url = hf_hub_url(repo.id, name, repo_type=repo.type, revision=repo.revision, endpoint=endpoint())
        get_hf_file_metadata(url, timeout=timeout_s, endpoint=endpoint())
    except HFValidationError:
        return Access(problem="no id of the hub: write owner/name")
    except GatedRepoError:
        token = f"the token in {TOKEN_VARIABLE} does not open it" if get_token() else "no token is set"
        return Access(commit, True, f"gated, {token}")
    except RevisionNotFoundError:
        return Access(commit, gated, f"has no revision {repo.revision}")
    except RepositoryNotFoundError:
        return Access(commit, gated, "not found, or private")
    except HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        return Access(commit, gated, f"the hub answers {status}")
    except (OSError, transport):
        return Access(is_reached=False, problem="cannot be checked: no network")
    return Access(commit, gated)
