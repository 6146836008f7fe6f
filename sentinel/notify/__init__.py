"""Notification policy, outbox, delivery and transports."""
