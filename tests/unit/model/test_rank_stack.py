"""Where ranks are while a run stands still, and which of them the others wait for."""

import pytest

from sentinel.model.rank_stack import (
    MAX_TEXT_BYTES,
    Frame,
    RankStack,
    find_odd_ranks,
    group_stacks,
    parse_stacks,
    serialize_stacks,
)

LIBRARY = "/venv/lib/python3.11/site-packages/torch"
TRAIN = Frame("train", "/home/me/train.py", 91)
LOAD = Frame("load_batch", "/home/me/train.py", 88)
WRAPPER = Frame("wrapper", f"{LIBRARY}/distributed/c10d_logger.py", 81)
ALL_REDUCE = (Frame("all_reduce", f"{LIBRARY}/distributed/distributed_c10d.py", 2810), WRAPPER)
BACKWARD = (
    Frame("_engine_run_backward", f"{LIBRARY}/autograd/graph.py", 823),
    Frame("Tensor.backward", f"{LIBRARY}/_tensor.py", 581),
)
LOADER = (
    Frame("wait", "/usr/lib/python3.11/threading.py", 320),
    Frame("_MultiProcessingDataLoaderIter._try_get_data", f"{LIBRARY}/utils/data/dataloader.py", 1),
)


def stack(ranks, *frames, state=""):
    return RankStack(tuple(ranks), tuple(frames), state)


def test_frames_that_only_call_another_are_not_shown():
    wrapped = stack(
        [1],
        Frame("nonrecursive_disable_wrapper", f"{LIBRARY}/_dynamo/external_utils.py", 28),
        Frame("Module._call_impl", f"{LIBRARY}/nn/modules/module.py", 1787),
        LOAD,
        Frame("monitored", "/home/me/sentinel/client/monitor.py", 58),
    )

    assert wrapped.format_frames() == "load_batch (train.py:88)"


def test_a_hang_at_the_exit_is_not_located_in_the_function_that_calls_the_program():
    at_exit = stack(
        [1],
        Frame("monitored", "/home/me/sentinel/client/monitor.py", 58),
        Frame("<module>", "/home/me/train.py", 91),
        state="does not return to Python",
    )

    assert at_exit.describe() == "rank 1 does not return to Python in <module> (train.py:91)"


def test_the_rank_outside_the_collective_is_odd():
    stacks = [stack([0, 2, 3], *ALL_REDUCE, TRAIN), stack([1], LOAD, TRAIN)]

    assert find_odd_ranks(stacks, ()) == (1,)
    assert [each.describe() for each in stacks] == [
        "ranks 0, 2-3 wait in all_reduce (train.py:91)",
        "rank 1 is in load_batch (train.py:88)",
    ]


def test_a_rank_in_a_function_of_the_backward_pass_does_not_wait():
    inside = stack([1], Frame("Op.backward", "/home/me/op.py", 7), *BACKWARD, TRAIN)

    assert find_odd_ranks([stack([0], *BACKWARD, TRAIN), inside], (0, 1)) == (1,)
    assert inside.describe() == "rank 1 is in Op.backward (op.py:7)"


def test_a_rank_that_left_out_a_collective_is_ahead_of_the_others():
    in_collective, ahead = stack([0], *ALL_REDUCE, TRAIN), stack([1], *BACKWARD, TRAIN)

    assert find_odd_ranks([in_collective, ahead], [0]) == (1,)
    assert find_odd_ranks([in_collective, ahead], [0, 1]) == ()
    assert find_odd_ranks([stack([0, 2], *ALL_REDUCE, TRAIN), ahead], [0, 1, 2]) == (1,)


def test_a_rank_that_waits_for_a_single_rank_misses_the_collective():
    receiving = stack([0], Frame("recv", ALL_REDUCE[0].file, 9), WRAPPER, LOAD, TRAIN)

    assert find_odd_ranks([receiving, stack([1], *ALL_REDUCE, TRAIN)], (0, 1)) == (0,)
    assert receiving.describe() == "rank 0 waits in recv (train.py:88)"


@pytest.mark.parametrize("behind", [(), (0, 1), (1,)])
def test_ranks_at_the_same_place_are_not_odd(behind):
    assert find_odd_ranks([stack([0, 1], *BACKWARD, TRAIN)], behind) == ()
    assert find_odd_ranks([], behind) == ()


def test_most_ranks_that_wait_for_a_device_are_not_odd():
    item = Frame("train", "/home/me/train.py", 95)

    assert find_odd_ranks([stack([0, 2, 3], item), stack([1], LOAD, TRAIN)], ()) == (1,)
    assert find_odd_ranks([stack([0], item), stack([1], LOAD, TRAIN)], ()) == ()


def test_places_are_in_words():
    waits = stack([0], *LOADER, TRAIN)
    alone = stack([0], *BACKWARD, TRAIN)

    assert waits.describe() == "rank 0 waits for the next batch of a DataLoader (train.py:91)"
    assert alone.describe(is_alone=True) == "the process is in the backward pass (train.py:91)"
    assert stack([1, 2], state="is suspended by SIGSTOP").describe() == (
        "ranks 1-2 are suspended by SIGSTOP"
    )
    assert waits.format_frames().startswith("wait (threading.py:320) < ")


def test_what_the_kernel_knows_is_added_to_the_place():
    frame = Frame("save", "/home/me/train.py", 12)
    disk = "waits for a disk or a file system"

    assert stack([1], frame, state=disk).describe() == f"rank 1 {disk} in save (train.py:12)"
    assert stack([1, 2], frame, state=disk).describe() == (
        "ranks 1-2 wait for a disk or a file system in save (train.py:12)"
    )
    assert stack([1, 2], state="computes without returning to Python").describe() == (
        "ranks 1-2 compute without returning to Python"
    )
    assert stack([0], frame, state="does not return to Python").describe(is_alone=True) == (
        "the process does not return to Python in save (train.py:12)"
    )


def test_equal_stacks_are_grouped_and_survive_the_way():
    stacks = group_stacks(
        [stack([r], *(ALL_REDUCE if r != 1 else (LOAD,)), TRAIN) for r in (2, 1, 0)]
    )

    assert [each.ranks for each in stacks] == [(0, 2), (1,)]
    assert parse_stacks(serialize_stacks(stacks)) == stacks


def test_long_stacks_are_cut():
    deep = [
        stack([rank], *[Frame(f"f{n}", "/x" * 100, n) for n in range(48)]) for rank in range(64)
    ]
    text = serialize_stacks(deep)

    assert 0 < len(text) <= MAX_TEXT_BYTES
    assert parse_stacks(text)[63].ranks == (63,)


@pytest.mark.parametrize("text", ["", "[", "[[1]]", "null", "[[[0],[[1]],2]]", "7", "[[0,1,2]]"])
def test_a_damaged_text_holds_no_stacks(text):
    assert parse_stacks(text) == []
