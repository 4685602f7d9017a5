"""Downloads from a server on this machine that stands in for the hub: faults, refusals, caches, offline."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refbias.acquisition import cache, hub, web
from refbias.acquisition.fetch import fetch
from refbias.artifacts import read_json
from refbias.cli import fetch as fetch_stage
from refbias.config.data import HubFiles, UrlFiles
from refbias.config.models import HubSource
from refbias.errors import UserError
from refbias.models import acquire
from tests.hub_server import COMMIT, HubServer, ask_only, sha256

BIG = bytes(range(256)) * 40
SMALL = b"type,system_prompt\n"
REPO = "owner/data"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A server that the hub's client and the downloads ask, empty caches, no token, no waits."""
    import huggingface_hub

    with HubServer() as running:
        running.repos[REPO] = {"train/big.parquet": BIG, "small.csv": SMALL}
        ask_only(running, tmp_path, monkeypatch)
        monkeypatch.setattr(cache, "FIRST_WAIT_S", 0.0)
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
        yield running
        huggingface_hub.close_session()


def hub_files(**changes: Any) -> HubFiles:
    values = {"kind": "hub", "id": REPO, "revision": COMMIT, "files": ["train/big.parquet", "small.csv"], **changes}
    return HubFiles.model_validate(values)


def one_file(server: HubServer, data: bytes, digest: str | None = None, name: str = "/f/a.txt") -> UrlFiles:
    server.plain[name] = data
    return UrlFiles(kind="url", url=server.address + name, sha256=digest or sha256(data))


def run_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_hub_files_arrive_under_their_names(server: HubServer, tmp_path: Path) -> None:
    facts = fetch(hub_files(sha256={"small.csv": sha256(SMALL)}), tmp_path / "out")
    assert (tmp_path / "out" / "train" / "big.parquet").read_bytes() == BIG
    assert (tmp_path / "out" / "small.csv").read_bytes() == SMALL
    assert facts["commit"] == COMMIT
    assert facts["files_sha256"] == {"train/big.parquet": sha256(BIG), "small.csv": sha256(SMALL)}


def test_a_branch_is_resolved_to_its_commit(server: HubServer, tmp_path: Path) -> None:
    assert fetch(hub_files(revision="main"), tmp_path)["commit"] == COMMIT


def test_a_wrong_checksum_of_the_hub_is_refused(server: HubServer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"small\.csv: SHA-256 is {sha256(SMALL)}, not {'0' * 64}") as caught:
        fetch(hub_files(sha256={"small.csv": "0" * 64}), tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "small.csv").exists()


def test_other_bytes_than_the_hub_states_are_refused(server: HubServer, tmp_path: Path) -> None:
    server.tampered.add("train/big.parquet")
    with pytest.raises(UserError, match=rf"big\.parquet: SHA-256 is {sha256(BIG[::-1])}, not {sha256(BIG)}"):
        fetch(hub_files(), tmp_path)
    server.tampered.clear()
    # what was damaged on the way does not stay in the cache
    fetch(hub_files(), tmp_path)
    assert (tmp_path / "train" / "big.parquet").read_bytes() == BIG


def test_a_damaged_cache_is_mended(server: HubServer, tmp_path: Path) -> None:
    fetch(hub_files(), tmp_path)
    kept = next((tmp_path / "cache" / "hub").rglob(sha256(BIG)))
    (tmp_path / "train" / "big.parquet").unlink()
    kept.write_bytes(b"half")
    fetch(hub_files(), tmp_path)
    assert (tmp_path / "train" / "big.parquet").read_bytes() == BIG


def test_a_cut_transfer_of_the_hub_goes_on_and_a_stuck_one_is_refused(server: HubServer, tmp_path: Path) -> None:
    server.cuts["train/big.parquet"] = 2
    fetch(hub_files(), tmp_path)
    assert (tmp_path / "train" / "big.parquet").read_bytes() == BIG
    server.repos[REPO]["other.bin"] = BIG + b"x"
    server.stuck.add("other.bin")
    with pytest.raises(UserError, match=rf"{REPO}: cannot be downloaded .*kind: local"):
        fetch(hub_files(files=["other.bin"]), tmp_path)
    assert not (tmp_path / "other.bin").exists()


def test_refusals_of_the_hub_are_told_apart(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=f"{REPO}: no revision 'v9': see https://huggingface.co/datasets/{REPO}"):
        fetch(hub_files(revision="v9"), tmp_path)
    with pytest.raises(UserError, match="nobody/none: not found, or private"):
        fetch(hub_files(id="nobody/none"), tmp_path)
    with pytest.raises(UserError, match=f"{REPO}: a file is not there at revision {COMMIT}"):
        fetch(hub_files(files=["absent.csv"]), tmp_path)
    server.gated[REPO] = "right"
    for token in (None, "wrong"):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(UserError, match=f"{REPO}: gated: accept its licence at .*/{REPO} and set HF_TOKEN"):
            fetch(hub_files(), tmp_path)
    monkeypatch.setenv("HF_TOKEN", "right")
    fetch(hub_files(), tmp_path)
    assert (tmp_path / "small.csv").read_bytes() == SMALL


def test_offline_a_full_cache_serves_and_an_empty_one_is_named(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = one_file(server, BIG)
    fetch(hub_files(revision="main"), tmp_path)
    fetch(source, tmp_path)
    run_offline(monkeypatch)
    server.requests.clear()
    for wanted in (hub_files(revision="main"), hub_files(), source):
        fetch(wanted, tmp_path / "again")
    assert (tmp_path / "again" / "train" / "big.parquet").read_bytes() == BIG
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path / "empty"))
    with pytest.raises(UserError, match=rf"{REPO}: offline and not in the cache at revision {COMMIT}"):
        fetch(hub_files(), tmp_path / "none")
    with pytest.raises(UserError, match=r"a\.txt: not in the cache .* and offline: run once with network"):
        fetch(source, tmp_path / "none")
    assert server.requests == []


def test_an_address_is_fetched_once_for_all_runs(server: HubServer, tmp_path: Path) -> None:
    source = one_file(server, BIG)
    first = fetch(source, tmp_path / "one")
    assert first["files_sha256"] == {"a.txt": sha256(BIG)}
    fetch(source, tmp_path / "two")
    assert (tmp_path / "two" / "a.txt").read_bytes() == BIG
    assert server.bodies() == 1
    # another address of the same content is not asked at all
    assert web.download(f"{server.address}/nowhere", sha256(BIG)).read_bytes() == BIG


def test_several_files_below_an_address(server: HubServer, tmp_path: Path) -> None:
    server.plain |= {"/p/a.csv": b"a", "/p/sub/b.csv": b"b"}
    files = {"a.csv": sha256(b"a"), "sub/b.csv": sha256(b"b")}
    fetch(UrlFiles(kind="url", url=f"{server.address}/p/", files=files), tmp_path)
    assert ((tmp_path / "a.csv").read_bytes(), (tmp_path / "sub" / "b.csv").read_bytes()) == (b"a", b"b")


def test_a_wrong_checksum_of_an_address_is_refused_and_leaves_nothing(server: HubServer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"a\.txt: SHA-256 is {sha256(BIG)}, not {'1' * 64}"):
        fetch(one_file(server, BIG, "1" * 64), tmp_path / "out")
    assert server.bodies() == 1, "the same bytes would come again"
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_transfer_of_an_address_is_tried_again(server: HubServer, tmp_path: Path, ranges: bool) -> None:
    source = one_file(server, BIG)
    server.knows_ranges = ranges
    server.cuts["/f/a.txt"] = 2
    fetch(source, tmp_path)
    assert (tmp_path / "a.txt").read_bytes() == BIG
    assert server.bodies() == 3


def test_a_transfer_that_never_ends_is_refused_and_goes_on_later(server: HubServer, tmp_path: Path) -> None:
    source = one_file(server, BIG)
    server.stuck.add("/f/a.txt")
    with pytest.raises(UserError, match=r"a\.txt: not downloaded \(cut after .* try again later, .*kind: local"):
        fetch(source, tmp_path)
    assert server.bodies() == cache.ATTEMPTS
    server.stuck.clear()
    fetch(source, tmp_path)
    assert (tmp_path / "a.txt").read_bytes() == BIG


def test_pieces_of_two_versions_are_not_joined(server: HubServer, tmp_path: Path) -> None:
    source = one_file(server, BIG)
    part = cache.by_content(sha256(BIG)).with_name(f".{sha256(BIG)}.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"older version")
    fetch(source, tmp_path)
    assert (tmp_path / "a.txt").read_bytes() == BIG
    part.write_bytes(BIG + b"longer than the file")
    cache.by_content(sha256(BIG)).unlink()
    fetch(source, tmp_path / "again")
    assert (tmp_path / "again" / "a.txt").read_bytes() == BIG


def test_a_busy_server_is_waited_for_and_an_absent_file_is_not(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(cache, "FIRST_WAIT_S", 1.0)
    monkeypatch.setattr("refbias.acquisition.cache.time.sleep", waits.append)
    source = one_file(server, SMALL)
    server.busy = 3
    fetch(source, tmp_path)
    assert waits == [1.0, 2.0, 4.0]
    with pytest.raises(UserError, match="the server answers 404"):
        web.download(f"{server.address}/absent", "2" * 64)
    assert len(waits) == 3


def test_a_cached_file_that_was_changed_is_fetched_again(server: HubServer, tmp_path: Path) -> None:
    source = one_file(server, BIG)
    fetch(source, tmp_path)
    cache.by_content(sha256(BIG)).write_bytes(b"changed")
    (tmp_path / "a.txt").unlink()
    fetch(source, tmp_path)
    assert (tmp_path / "a.txt").read_bytes() == BIG


def test_no_network_is_told_in_one_line(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=rf"{REPO}: cannot be downloaded \(\w+\) and not in the cache") as caught:
        fetch(hub_files(), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_model_of_the_hub_is_acquired_and_its_checksum_kept(server: HubServer, tmp_path: Path) -> None:
    weights = BIG * 2
    server.repos["owner/model"] = {
        "config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": weights,
        "pytorch_model.bin": BIG,
    }
    (tmp_path / "out").mkdir()
    facts = acquire(HubSource(kind="hub", id="owner/model", revision="main"), tmp_path / "out", "float32")
    assert facts["commit"] == COMMIT
    assert facts["stated_sha256"] == {"model.safetensors": sha256(weights)}
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights
    assert not any(path.endswith(".bin") for _, path in server.requests)


def test_the_stage_writes_its_manifest_last(server: HubServer, tmp_path: Path) -> None:
    source = one_file(server, SMALL)
    settings = json.dumps({"name": "alpaca", "source": source.model_dump(mode="json")})
    fetch_stage.main(["--settings", settings, "--output", str(tmp_path / "alpaca")])
    manifest = read_json(tmp_path / "alpaca" / "manifest.json")
    assert manifest["source"]["files_sha256"] == {"a.txt": sha256(SMALL)}
    assert manifest["source"]["addresses"] == {"a.txt": source.url}
    wrong = json.dumps({"name": "alpaca", "source": source.model_copy(update={"sha256": "3" * 64}).model_dump()})
    with pytest.raises(UserError):
        fetch_stage.main(["--settings", wrong, "--output", str(tmp_path / "alpaca")])
    assert not (tmp_path / "alpaca" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "url", "url": "https://a/b"}, "either `sha256`"),
        ({"kind": "url", "url": "ftp://a/b", "sha256": "0" * 64}, "should match pattern"),
        ({"kind": "url", "url": "https://a", "files": {"../x": "0" * 64}}, "is no relative file name"),
        ({"kind": "hub", "id": REPO, "revision": "main", "files": ["/etc/passwd"]}, "is no relative file name"),
        (
            {"kind": "hub", "id": REPO, "revision": "main", "files": ["a"], "sha256": {"b": "0" * 64}},
            "sha256 names 'b'",
        ),
    ],
)
def test_sources_that_cannot_be_meant_are_refused(source: dict[str, Any], message: str) -> None:
    from refbias.config.root import from_mapping

    data = {"run": "r", "models": {"m": {"source": {"kind": "packaged_gguf"}}}, "data": {"alpaca": {"source": source}}}
    with pytest.raises(UserError, match=message):
        from_mapping(data)


def test_the_hubs_own_cache_is_used_unless_another_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REFBIAS_CACHE", raising=False)
    assert hub.hub_cache() is None
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path))
    assert hub.hub_cache() == tmp_path / "hub"
