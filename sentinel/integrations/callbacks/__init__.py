"""Callbacks for users who prefer them to the decorator."""
