"""Inside the trainer: standard library only, torch where it is already imported."""
