"""Seal: who does not share the token is not understood, and no message passes for another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.cluster.authentication import (
    OVERHEAD_BYTES,
    PROTOCOL_VERSION,
    REFUSAL_REASONS,
    MessageAuthenticator,
    RefusedMessageError,
)

SEAL = MessageAuthenticator.for_job("token", "job")


def refusal(seal, purpose, message):
    with pytest.raises(RefusedMessageError) as caught:
        seal.verify(purpose, message)
    assert caught.value.reason in REFUSAL_REASONS
    return caught.value


@given(st.binary(), st.text())
def test_what_was_sealed_is_opened_for_the_same_purpose(body, purpose):
    message = SEAL.sign("a purpose", body)

    assert SEAL.verify("a purpose", message) == body
    assert len(message) == OVERHEAD_BYTES + len(body)


@pytest.mark.parametrize(
    ("other", "purpose"),
    [
        (MessageAuthenticator.for_job("token", "job"), "box/2"),
        (MessageAuthenticator.for_job("other", "job"), "box/1"),
        (MessageAuthenticator.for_job("token", "other"), "box/1"),
        (MessageAuthenticator.for_job("", "job"), "box/1"),
    ],
    ids=["another place", "another token", "another job", "no token"],
)
def test_what_is_not_ours_is_refused_with_the_remedy(other, purpose):
    message = other.close(purpose, b"body")

    refused = refusal(SEAL, "box/1", message)

    assert refused.reason == "token"
    assert "[cluster] token" in str(refused)


def test_another_protocol_is_told_as_such_though_its_seal_is_right():
    message = bytes([PROTOCOL_VERSION + 1]) + SEAL.sign("box", b"body")[1:]

    refused = refusal(SEAL, "box", message)

    assert refused.reason == "version"
    assert f"protocol {PROTOCOL_VERSION + 1}" in str(refused)


@given(st.binary(max_size=OVERHEAD_BYTES - 1))
def test_a_message_that_is_cut_short_is_damaged(message):
    assert refusal(SEAL, "box", message).reason == "damaged"


@given(st.integers(0, 8 * (OVERHEAD_BYTES + 3) - 1))
def test_a_message_of_which_one_bit_fell_over_is_refused(bit):
    message = bytearray(SEAL.sign("box", b"abc"))
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
    one, other = (
        MessageAuthenticator.for_job("", "job-\udcff"),
        MessageAuthenticator.for_job("", "job-\udcfe"),
    )

    assert one.verify("box", one.sign("box", b"body")) == b"body"
    assert one.secret != other.secret
