"""Inputs mismatched: the images of a batch are in one row, and not with their examples.

Formula
    Finding  = in 2 calls of the model in a row `input_ids` have the shape (n, length), with n of 2
               or more, and the images beside them begin with (1, n)

Units
    There are no settings. Looked at: the named inputs of the calls in the steps 2 to 5.

Source
    huggingface/transformers issue 34204: a processor puts the images of a batch into one row. The
    model accepts the shape, and gives all examples the features of one row.

Defaults
    Images that are in one row for another reason, as patches of all images or several images of one
    example, have another second dimension than the number of examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck


class InputsMismatched(ReportedCheck):
    """Evaluates the check `inputs`."""

    check = "inputs"
    unreported = (
        "The check needs a model that is called with `input_ids` and images by name, and is not "
        "compiled."
    )
    signal = "loss"
    remedy = (
        "Pass the images to the processor as one list for each example: "
        "`images=[[image] for image in images]`. Print the shapes of a batch before the training."
    )
    problems: ClassVar[Mapping[str, Problem]] = {
        "images_in_one_row": Problem(
            "The images of {examples:.0f} examples are in one row, with the shape {shape}: each "
            "example is computed with the images of all.",
            remedy,
        )
    }
