"""What deliveries of any kind contain."""

from __future__ import annotations

import email
import email.policy
import json

from sentinel.model.delivery import AppriseCall, HttpRequest, Mail, ProcessInput


def payload(delivery):
    """The bytes that reach the receiver as content."""
    if isinstance(delivery, HttpRequest):
        return delivery.body
    if isinstance(delivery, Mail):
        return delivery.message
    if isinstance(delivery, ProcessInput):
        return delivery.stdin
    assert isinstance(delivery, AppriseCall)
    return f"{delivery.title}\n{delivery.body}".encode()


def text(delivery):
    """The content as text: JSON without escapes, an e-mail decoded with its subject."""
    content = payload(delivery)
    if isinstance(delivery, Mail):
        message = email.message_from_bytes(content, policy=email.policy.default)
        parts = [part.get_content() for part in message.walk() if not part.is_multipart()]
        return "\n".join([f"{message['Subject']}", *parts])
    try:
        return json.dumps(json.loads(content), ensure_ascii=False)
    except ValueError:
        return content.decode()
