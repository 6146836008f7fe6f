"""Message authentication: a keyed digest (MAC) on each value in the store, which is open to anyone.

A signed message is one byte of protocol version, 16 bytes of BLAKE2b keyed with the secret that the
agents of the job share, and the body. The digest covers the `purpose` too, so that a message cannot
be replayed as another one, or under another key.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest

from sentinel.cluster.protocol import PROTOCOL_VERSION
from sentinel.model.counters import Counters

DIGEST_BYTES = 16
OVERHEAD_BYTES = 1 + DIGEST_BYTES

REFUSAL_REASONS = (
    "version",
    "token",
    "damaged",
    "repeated",
    "future",
    "too_large",
    "too_many",
    "gap",
    "foreign_key",
    "foreign_connection",
    "flood",
)
"""Why data of another agent is refused.

version: another protocol version. token: signed with another token. damaged: correctly signed but
malformed. repeated: already received. future: a time or step that is not plausible yet. too_large:
exceeds the size limit. too_many: exceeds the limit of nodes. gap: never arrived, since the spool of
the node was full. foreign_key, foreign_connection: keys and open connections of the store that
belong to no agent; above a limit they are removed, or the store is closed and opened again, and
each time is counted as a flood."""


class RefusedMessageError(ValueError):
    """A message that is not accepted; `reason` is one of REFUSAL_REASONS."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def count_refused(counters: Counters, reason: str, count: int = 1) -> None:
    """Count messages or records of another agent that are refused for `reason`."""
    counters.add("sentinel_head_connection_rejected_total", reason, count)


@dataclass(frozen=True, slots=True, repr=False)
class MessageAuthenticator:
    """Signs and verifies messages with one secret."""

    secret: bytes

    @classmethod
    def for_job(cls, token: str, job: str) -> MessageAuthenticator:
        """The authenticator of a job with that token; "" for none.

        Without a token the job id is the secret: that keeps jobs apart, but excludes outsiders only
        as long as they do not know the id.
        """
        shared = f"{job}\0{token}".encode(errors="surrogatepass")
        return cls(blake2b(shared, person=b"sentinel").digest())

    def sign(self, purpose: str, body: bytes) -> bytes:
        """The signed message for that purpose."""
        return bytes([PROTOCOL_VERSION]) + self._digest(purpose, body) + body

    def verify(self, purpose: str, message: bytes) -> bytes:
        """The body of a signed message. Raises RefusedMessageError."""
        if len(message) < OVERHEAD_BYTES:
            raise RefusedMessageError("damaged", f"A message of {len(message)} bytes is too short.")
        if message[0] != PROTOCOL_VERSION:
            error = (
                f"The other agent uses protocol {message[0]}, this agent {PROTOCOL_VERSION}: "
                "install one version of sentinel on all nodes."
            )
            raise RefusedMessageError("version", error)
        digest, body = message[1:OVERHEAD_BYTES], message[OVERHEAD_BYTES:]
        if not compare_digest(digest, self._digest(purpose, body)):
            error = (
                "The message is signed with another token: set one [cluster] token on all nodes."
            )
            raise RefusedMessageError("token", error)
        return body

    def _digest(self, purpose: str, body: bytes) -> bytes:
        digest = blake2b(key=self.secret, digest_size=DIGEST_BYTES)
        digest.update(f"{purpose}\0".encode())
        digest.update(body)
        return digest.digest()
