"""Messages with another token are refused, and no message can be replayed as another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.cluster.authentication import (
    OVERHEAD_BYTES,
    REFUSAL_REASONS,
    MessageAuthenticator,
    RefusedMessageError,
)
from sentinel.cluster.protocol import PROTOCOL_VERSION

AUTHENTICATOR = MessageAuthenticator.for_job("token", "job")


def refusal(authenticator, purpose, message):
    with pytest.raises(RefusedMessageError) as caught:
        authenticator.verify(purpose, message)
    assert caught.value.reason in REFUSAL_REASONS
    return caught.value


@given(st.binary(), st.text())
def test_a_signed_message_is_verified_for_the_same_purpose(body, purpose):
    message = AUTHENTICATOR.sign("a purpose", body)

    assert AUTHENTICATOR.verify("a purpose", message) == body
    assert len(message) == OVERHEAD_BYTES + len(body)


@pytest.mark.parametrize(
    ("other", "purpose"),
    [
        (MessageAuthenticator.for_job("token", "job"), "mailbox/2"),
        (MessageAuthenticator.for_job("other", "job"), "mailbox/1"),
        (MessageAuthenticator.for_job("token", "other"), "mailbox/1"),
        (MessageAuthenticator.for_job("", "job"), "mailbox/1"),
    ],
    ids=["another purpose", "another token", "another job", "no token"],
)
def test_a_message_with_another_key_or_purpose_is_refused_with_a_remedy(other, purpose):
    message = other.sign(purpose, b"body")

    refused = refusal(AUTHENTICATOR, "mailbox/1", message)

    assert refused.reason == "token"
    assert "[cluster] token" in str(refused)


def test_another_protocol_version_is_refused_though_the_digest_is_right():
    message = bytes([PROTOCOL_VERSION + 1]) + AUTHENTICATOR.sign("mailbox", b"body")[1:]

    refused = refusal(AUTHENTICATOR, "mailbox", message)

    assert refused.reason == "version"
    assert f"protocol {PROTOCOL_VERSION + 1}" in str(refused)


@given(st.binary(max_size=OVERHEAD_BYTES - 1))
def test_a_truncated_message_is_damaged(message):
    assert refusal(AUTHENTICATOR, "mailbox", message).reason == "damaged"


@given(st.integers(0, 8 * (OVERHEAD_BYTES + 3) - 1))
def test_a_message_with_a_flipped_bit_is_refused(bit):
    message = bytearray(AUTHENTICATOR.sign("mailbox", b"abc"))
    message[bit // 8] ^= 1 << bit % 8

    assert refusal(AUTHENTICATOR, "mailbox", bytes(message)).reason == (
        "version" if bit < 8 else "token"
    )


@given(st.binary(max_size=200))
def test_garbage_is_refused(message):
    refusal(AUTHENTICATOR, "mailbox", message)


def test_the_secret_is_not_in_the_repr():
    assert "secret" not in repr(AUTHENTICATOR)
    assert AUTHENTICATOR.secret.hex() not in repr(AUTHENTICATOR)


def test_a_job_id_with_lone_surrogates_is_a_valid_secret():
    """A launcher may set any bytes; Python decodes invalid ones as lone surrogates."""
    one, other = (
        MessageAuthenticator.for_job("", "job-\udcff"),
        MessageAuthenticator.for_job("", "job-\udcfe"),
    )

    assert one.verify("mailbox", one.sign("mailbox", b"body")) == b"body"
    assert one.secret != other.secret
