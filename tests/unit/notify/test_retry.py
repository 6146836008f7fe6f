"""Tests of the `Retry-After` header, in the forms that receivers send."""

import pytest

from sentinel.notify.transports.http import MAX_RETRY_AFTER_SECONDS, parse_retry_after

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.fault("D3")
@pytest.mark.parametrize(
    ("header", "delay"),
    [
        ("3", 3.0),
        ("1.5", 1.5),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("100000000000000000000", MAX_RETRY_AFTER_SECONDS),
        ("1e300", MAX_RETRY_AFTER_SECONDS),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10.0),
        ("Sun, 06 Nov 1994 08:49:47", 10.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        ("Sun, 06 Nov 2094 08:49:37 GMT", MAX_RETRY_AFTER_SECONDS),
    ],
)
def test_a_valid_header_gives_a_delay(header, delay):
    assert parse_retry_after(header, NOW) == delay


@pytest.mark.fault("D3")
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
def test_an_invalid_header_gives_no_delay(header):
    assert parse_retry_after(header, NOW) is None
