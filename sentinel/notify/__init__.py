"""Notification policy, outbox and delivery."""
