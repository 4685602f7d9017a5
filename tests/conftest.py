"""Fixtures that all tests share."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shares_the_finished_run(item: pytest.Item) -> bool:
    return "finished" in getattr(item, "fixturenames", ())


def pytest_itemcollected(item: pytest.Item) -> None:
    """Two workers (`make test`): a file's tests stay together, and all that share the one finished run."""
    item.add_marker(pytest.mark.xdist_group("finished" if shares_the_finished_run(item) else item.path.name))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares the finished run comes first: it takes longest."""
    items.sort(key=lambda item: not shares_the_finished_run(item))


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
