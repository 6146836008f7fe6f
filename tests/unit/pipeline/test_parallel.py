"""A function that is applied to several items, in processes of which some are killed."""

from __future__ import annotations

import os
import signal

from sentinel.pipeline.parallel import ProcessKilledError, map_in_processes


def square(number):
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


def test_the_answers_are_in_the_order_of_the_items():
    for processes in (1, 2):
        assert [*map_in_processes(square, range(7), processes)] == [0, 1, 4, 9, 16, 25, 36]


def test_an_item_whose_process_is_killed_costs_the_others_nothing():
    answers = [*map_in_processes(square, [1, -1, 2, 3, -1, 4], 2)]

    assert [each for each in answers if isinstance(each, int)] == [1, 4, 9, 16]
    assert [isinstance(each, ProcessKilledError) for each in answers] == [
        *(False, True, False, False, True, False)
    ]
