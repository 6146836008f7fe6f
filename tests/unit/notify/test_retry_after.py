"""Retry-After: every receiver writes it its own way, and none may break the courier."""

import pytest

from sentinel.notify.retry_after import CAP, seconds

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("3", 3.0),
        ("1.5", 1.5),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("100000000000000000000", CAP),
        ("1e300", CAP),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10.0),
        ("Sun, 06 Nov 1994 08:49:47", 10.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        ("Sun, 06 Nov 2094 08:49:37 GMT", CAP),
    ],
)
def test_understands_what_receivers_write(header, wait):
    assert seconds(header, NOW) == wait


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "-1",
        "abc",
        "nan",
        "inf",
        "-inf",
        "1,5",
        "1" * 5000,
        "Sun, 99 Foo 1994",
        "\x00",
        "0x10",
    ],
)
def test_takes_garbage_for_silence(header):
    assert seconds(header, NOW) is None
