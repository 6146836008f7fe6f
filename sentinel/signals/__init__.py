"""What is measured, and what a logged key means."""
