"""Fixtures that all tests share."""

import functools
import os
import re
import signal
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    # a script's background job is started with Ctrl-C ignored, and so would be all that the tests start and interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def shares_the_finished_run(path: Path) -> bool:
    """Whether a file's tests need the one finished run of tests/workflow/conftest.py."""
    return bool(re.search(r"\b(finished|copy): Checkout", path.read_text(encoding="utf-8")))


@functools.cache
def turn(path: Path) -> int:
    """When a file's turn comes: what takes long goes first, so that two workers end together."""
    if shares_the_finished_run(path):
        return 0
    if path.parent.name == "workflow":
        return 1
    return 2 if "pytest.mark.slow" in path.read_text(encoding="utf-8") else 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: turn(item.path))


class Files(LoadScopeScheduling):  # type: ignore[misc]
    """Two workers (`make test`): a file's tests stay together, and all files that share the finished run."""

    def _split_scope(self, nodeid: str) -> str:
        name = nodeid.partition("::")[0]
        return "finished" if shares_the_finished_run(ROOT / name) else name


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Files:
    return Files(config, log)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def testdata() -> Path:
    """Folder of real benchmark files; the test is skipped where none is named."""
    folder = os.environ.get("REFBIAS_TESTDATA")
    if not folder:
        pytest.skip("REFBIAS_TESTDATA is not set: real benchmark files are not at hand")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"REFBIAS_TESTDATA: {path} is no folder")
    return path
