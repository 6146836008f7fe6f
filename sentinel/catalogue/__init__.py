"""What is measured, a line each: its unit, how ranks combine, and the names others give it."""
