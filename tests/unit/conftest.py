"""Fixtures of the unit tests that pass sentences through tiny models."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny import FAMILIES, build_tiny


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch use one thread: with more, a tiny model's sums wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Let torch use two threads, so that a CPU takes two batches at once."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model of every family."""
    folder = tmp_path_factory.mktemp("tiny")
    return {family: build_tiny(family, folder / family, seed=3) for family in FAMILIES}


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, empty at its start."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("REFBIAS_CACHE", str(folder))
    return folder
