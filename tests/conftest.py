"""Fixtures that all tests share."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


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
