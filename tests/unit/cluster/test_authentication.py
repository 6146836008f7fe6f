"""Seal: who does not share the token is not understood, and no message passes for another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.cluster.authentication import OVERHEAD, PROTOCOL, REASONS, RefusedError, Seal

SEAL = Seal.of("token", "job")


def refusal(seal, purpose, message):
    with pytest.raises(RefusedError) as caught:
        seal.open(purpose, message)
    assert caught.value.reason in REASONS
    return caught.value


@given(st.binary(), st.text())
def test_what_was_sealed_is_opened_for_the_same_purpose(body, purpose):
    message = SEAL.close("a purpose", body)

    assert SEAL.open("a purpose", message) == body
    assert len(message) == OVERHEAD + len(body)


@pytest.mark.parametrize(
    ("other", "purpose"),
    [
        (Seal.of("token", "job"), "box/2"),
        (Seal.of("other", "job"), "box/1"),
        (Seal.of("token", "other"), "box/1"),
        (Seal.of("", "job"), "box/1"),
    ],
    ids=["another place", "another token", "another job", "no token"],
)
def test_what_is_not_ours_is_refused_with_the_remedy(other, purpose):
    message = other.close(purpose, b"body")

    refused = refusal(SEAL, "box/1", message)

    assert refused.reason == "token"
    assert "[cluster] token" in str(refused)


def test_another_protocol_is_told_as_such_though_its_seal_is_right():
    message = bytes([PROTOCOL + 1]) + SEAL.close("box", b"body")[1:]

    refused = refusal(SEAL, "box", message)

    assert refused.reason == "version"
    assert f"protocol {PROTOCOL + 1}" in str(refused)


@given(st.binary(max_size=OVERHEAD - 1))
def test_a_message_that_is_cut_short_is_damaged(message):
    assert refusal(SEAL, "box", message).reason == "damaged"


@given(st.integers(0, 8 * (OVERHEAD + 3) - 1))
def test_a_message_of_which_one_bit_fell_over_is_refused(bit):
    message = bytearray(SEAL.close("box", b"abc"))
    message[bit // 8] ^= 1 << bit % 8

    assert refusal(SEAL, "box", bytes(message)).reason == ("version" if bit < 8 else "token")


@given(st.binary(max_size=200))
def test_garbage_is_refused(message):
    refusal(SEAL, "box", message)


def test_the_secret_is_not_shown():
    assert "secret" not in repr(SEAL)
    assert SEAL.secret.hex() not in repr(SEAL)


def test_a_job_whose_name_is_no_text_has_a_seal_all_the_same():
    """A launcher may hand on any bytes; Python keeps those that are no text as lone surrogates."""
    one, other = Seal.of("", "job-\udcff"), Seal.of("", "job-\udcfe")

    assert one.open("box", one.close("box", b"body")) == b"body"
    assert one.secret != other.secret
