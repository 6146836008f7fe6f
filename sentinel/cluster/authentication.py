"""Seal: a keyed digest on all that agents leave in a store which anybody may reach.

A sealed message is one byte of protocol version, 16 bytes of BLAKE2b keyed with what the job's
agents share, and the body. The digest covers the `purpose`, so that a message cannot be passed off
as another one, or as the same one in another place.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest

PROTOCOL_VERSION = 2
"""Grows with whatever agents of two versions would misunderstand."""
DIGEST_BYTES = 16
OVERHEAD_BYTES = 1 + DIGEST_BYTES


class RefusedMessageError(ValueError):
    """A message that is not taken; `reason` is one of `REASONS`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


REFUSAL_REASONS = (
    "version",
    "token",
    "damaged",
    "repeated",
    "future",
    "too_large",
    "too_many",
    "gap",
)
"""Why something of another agent is refused: another protocol; not sealed with our token; sealed,
and not understood all the same; had already; of a time or step that cannot be yet; larger than is
allowed; more senders than are allowed; never arrived, since its node had to drop it."""


@dataclass(frozen=True, slots=True, repr=False)
class MessageAuthenticator:
    """Seals and opens with one secret."""

    secret: bytes

    @classmethod
    def for_job(cls, token: str, job: str) -> MessageAuthenticator:
        """The seal of a job, by its token; where there is none, by the job's own name.

        Then it keeps jobs apart, and strangers out only as far as they do not know the name.
        """
        shared = f"{job}\0{token}".encode(errors="surrogatepass")
        return cls(blake2b(shared, person=b"sentinel").digest())

    def sign(self, purpose: str, body: bytes) -> bytes:
        """The message, sealed for that purpose."""
        return bytes([PROTOCOL_VERSION]) + self._digest(purpose, body) + body

    def verify(self, purpose: str, message: bytes) -> bytes:
        """The body. Raises RefusedError."""
        if len(message) < OVERHEAD_BYTES:
            raise RefusedMessageError("damaged", f"A message of {len(message)} bytes is cut short.")
        if message[0] != PROTOCOL_VERSION:
            what = f"It speaks protocol {message[0]}, we speak {PROTOCOL_VERSION}: use one version."
            raise RefusedMessageError("version", what)
        digest, body = message[1:OVERHEAD_BYTES], message[OVERHEAD_BYTES:]
        if not compare_digest(digest, self._digest(purpose, body)):
            what = "It is not sealed with our token: give all nodes the same [cluster] token."
            raise RefusedMessageError("token", what)
        return body

    def _digest(self, purpose: str, body: bytes) -> bytes:
        digest = blake2b(key=self.secret, digest_size=DIGEST_BYTES)
        digest.update(f"{purpose}\0".encode())
        digest.update(body)
        return digest.digest()
