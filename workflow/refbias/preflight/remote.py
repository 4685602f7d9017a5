"""Repositories of the hub and addresses: in the cache, or open to this token, or what is in the way."""

from huggingface_hub import get_token

from refbias.acquisition import hub, web
from refbias.acquisition.cache import by_content, is_offline
from refbias.config.external import HubNeed, hub_needs, url_needs
from refbias.config.root import Config
from refbias.errors import UserError
from refbias.models.files import check_directory
from refbias.planning.facts import KNOWN_GATED
from refbias.preflight.rows import MISSING, NOTE, OK, Row

TIMEOUT_S = 4.0
NO_NETWORK = "cannot be checked: no network"


def remote_rows(config: Config) -> list[Row]:
    """Return a row for each repository and each address that a run reads.

    After the first request without an answer nobody is asked again, so that a machine without network
    is told so within seconds.
    """
    rows = []
    is_reached = not is_offline()
    for need in hub_needs(config):
        row, is_reached = _hub_row(need, is_reached)
        rows.append(row)
    is_reached = not is_offline()
    for key, source in url_needs(config):
        for name, (url, sha256) in source.addresses().items():
            row, is_reached = _url_row(key, name, url, sha256, is_reached)
            rows.append(row)
    return rows


def _why_not_asked() -> str:
    return "offline, not asked" if is_offline() else NO_NETWORK


def _in_cache(repo: hub.Repo, need: HubNeed) -> bool:
    if need.files:
        return all(hub.cached_file(repo, name) for name in need.files)
    config = hub.cached_file(repo, "config.json")
    if config is None:
        return False
    try:
        check_directory(config.parent)
    except UserError:
        # a download that was broken off
        return False
    return True


def _hub_row(need: HubNeed, is_reached: bool) -> tuple[Row, bool]:
    repo = hub.Repo(need.id, need.revision, need.type)
    local = f"or `{need.key}: {{kind: local, path: ...}}`"
    facts: dict[str, str | bool | None] = {"id": need.id, "revision": need.revision, "page": repo.page}
    if _in_cache(repo, need):
        return Row("hub", need.id, OK, "in the cache", key=need.key, facts=facts), is_reached
    access = hub.Access(is_reached=False)
    if is_reached:
        access = hub.look(repo, need.files[0] if need.files else "config.json", TIMEOUT_S)
    facts |= {"commit": access.commit, "gated": access.gated}
    if not access.is_reached:
        gated = "gated" if need.id in KNOWN_GATED else "open, as far as is known"
        found = f"{gated}; not in the cache; {_why_not_asked()}"
        licence = f"accept the licence at {repo.page} and set {hub.TOKEN_VARIABLE}, then run with network"
        mend = licence if need.id in KNOWN_GATED else f"run with network ({repo.page})"
        return Row("hub", need.id, MISSING, found, f"{mend}, {local}", need.key, facts), False
    if access.problem:
        if access.gated:
            mend = f"accept the licence at {repo.page} and set {hub.TOKEN_VARIABLE}, {local}"
        else:
            mend = f"see {repo.page}, {local}"
        return Row("hub", need.id, MISSING, access.problem, mend, need.key, facts), True
    opened = "gated, this token opens it" if access.gated else "open"
    if not repo.is_pinned:
        pin = f"`{need.key}.revision: {access.commit}` pins it"
        return Row(
            "hub", need.id, NOTE, f"{opened}; {need.revision} is {access.commit} now", pin, need.key, facts
        ), True
    return Row("hub", need.id, OK, f"{opened}; the commit exists", key=need.key, facts=facts), True


def _url_row(key: str, name: str, url: str, sha256: str, is_reached: bool) -> tuple[Row, bool]:
    if by_content(sha256).is_file():
        return Row("url", name, OK, "in the cache", key=key, facts={"url": url}), is_reached
    problem = web.answers(url, TIMEOUT_S) if is_reached else None
    if is_reached and problem is None:
        return Row("url", name, OK, "the server has it", key=key, facts={"url": url}), True
    # a refusal is an answer
    is_reached = is_reached and problem is not None and not problem.startswith(web.NO_ANSWER)
    found = problem if is_reached and problem else f"not in the cache; {_why_not_asked()}"
    mend = f"run with network ({url}), or `{key}: {{kind: local, path: ...}}`"
    return Row("url", name, MISSING, found, mend, key, {"url": url}), is_reached


def token_row(remote: list[Row]) -> Row:
    """Return a row that says whether a token is set; it is missing where something gated is."""
    shut = [row.name for row in remote if row.kind == "hub" and row.status == MISSING and row.name in _gated(remote)]
    if get_token():
        return Row("token", hub.TOKEN_VARIABLE, OK, "set")
    if not shut:
        return Row("token", hub.TOKEN_VARIABLE, OK, "not set; nothing that is left to fetch needs one")
    mend = f"export {hub.TOKEN_VARIABLE}=<token from https://huggingface.co/settings/tokens>"
    return Row("token", hub.TOKEN_VARIABLE, MISSING, f"not set; needed by {', '.join(shut)}", mend)


def _gated(remote: list[Row]) -> set[str]:
    return {row.name for row in remote if row.facts.get("gated") or row.name in KNOWN_GATED}
