"""Batches in several threads: order, failures, compute threads."""

import threading
import time

import pytest
import torch

from refbias.lanes import Lanes, lanes_on

pytestmark = pytest.mark.usefixtures("two_threads")


def test_two_batches_meet_each_with_its_share_of_the_threads() -> None:
    both = threading.Barrier(2, timeout=60)

    def work(batch: int) -> tuple[int, int, bool]:
        both.wait()
        return batch, torch.get_num_threads(), torch.is_inference_mode_enabled()

    with Lanes(2) as lanes:
        found = lanes.map(work, [1, 5, 3, 2])
    assert found == [(batch, 1, True) for batch in range(4)]
    assert torch.get_num_threads() == 2


def test_the_largest_batches_are_begun_first() -> None:
    begun: list[int] = []
    with Lanes(2) as lanes:
        lanes.map(begun.append, [1, 5, 3, 2, 4])
    assert set(begun[:2]) == {1, 4}
    assert begun[-1] == 0


@pytest.mark.parametrize(("n_lanes", "sizes"), [(1, [1, 2, 3]), (3, [1, 2, 3]), (2, [1]), (2, [])])
def test_the_caller_works_where_lanes_would_not_help(n_lanes: int, sizes: list[int]) -> None:
    with Lanes(n_lanes) as lanes:
        found = lanes.map(lambda batch: (batch, threading.get_ident(), torch.is_inference_mode_enabled()), sizes)
    assert found == [(batch, threading.get_ident(), True) for batch in range(len(sizes))]


def test_the_first_failure_is_raised_and_nothing_is_begun_after_it() -> None:
    begun: list[int] = []
    both = threading.Barrier(2, timeout=60)

    def work(batch: int) -> None:
        begun.append(batch)
        if batch > 1:
            return
        both.wait()
        if batch == 0:
            raise ValueError("batch 0")
        # the other lane has failed by then
        time.sleep(0.3)
        begun.append(-1)

    with Lanes(2) as lanes:
        with pytest.raises(ValueError, match="batch 0"):
            lanes.map(work, [9, 8, 1, 1, 1, 1])
        # what was under way has ended
        assert sorted(begun) == [-1, 0, 1]
        # and the lanes can be used again
        assert lanes.map(lambda batch: batch, [1, 1]) == [0, 1]
    assert torch.get_num_threads() == 2


def test_an_accelerator_takes_one_batch_at_a_time() -> None:
    assert [lanes_on(torch.device(name)) for name in ("cpu", "cuda", "mps")] == [2, 1, 1]
