"""What is worked out from stored runs for people: reports and comparisons."""
