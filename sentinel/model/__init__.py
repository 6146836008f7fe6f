"""Plain data that every other package uses: records, findings, incidents, notifications."""
