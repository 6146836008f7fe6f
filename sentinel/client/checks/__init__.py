"""Checks of the training itself, for errors that no curve shows at once; one check a file.

A check observes the backward passes and the steps of the primary optimizer. It reports what it
found as a record of the event CHECK, which the detector with its name evaluates.
"""
