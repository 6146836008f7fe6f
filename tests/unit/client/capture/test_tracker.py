"""The numbers that are read from the values of a tracker's log call."""

from sentinel.client.capture.tracker import read_numbers


def test_nested_names_are_joined_and_other_values_are_left_out():
    values = {"loss": 1, "note": "text", "eval": {"loss": 2.0, "table": [1]}, 7: 3.0}

    assert read_numbers(values, ".") == {"loss": 1.0, "eval.loss": 2.0}


def test_of_a_repeated_name_the_last_number_counts():
    values = {"a/b": 1.0, "c": 2.0, "a": {"b": 3.0}}

    assert list(read_numbers(values).items()) == [("a/b", 3.0), ("c", 2.0)]
    assert read_numbers({**values, "a": {"b": "text"}}) == {"a/b": 1.0, "c": 2.0}


def test_the_first_number_comes_first_even_if_its_name_held_something_else_before():
    values = {"a/b": "text", "c": 2.0, "a": {"b": 3.0}}

    assert list(read_numbers(values)) == ["c", "a/b"]
