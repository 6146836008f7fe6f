"""What is measured inside a training process, and how."""
