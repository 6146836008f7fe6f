"""From records to incidents, cases and diagnoses."""
