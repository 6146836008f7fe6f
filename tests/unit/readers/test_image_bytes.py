"""Images are recognised by their bytes only, and read only where they are."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.images import gif, jpeg, png, webp

from sentinel.readers.image_bytes import MAX_IMAGE_BYTES, ImageInfo, identify_image, read_image

MAKERS = {"image/png": png, "image/gif": gif, "image/jpeg": jpeg, "image/webp": webp}


@pytest.mark.parametrize("content_type", MAKERS)
def test_type_and_size_are_those_of_the_bytes(content_type):
    assert identify_image(MAKERS[content_type](48, 32)) == ImageInfo(content_type, 48, 32)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        b"<!doctype html><script>alert(1)</script>",
        b"BM" + bytes(60),
        png()[:20],
        png(0, 5),
        png()[:16] + struct.pack(">II", 60_000, 60_000) + png()[24:],
        png() + bytes(MAX_IMAGE_BYTES),
    ],
    ids=["empty", "svg", "html", "bmp", "cut off", "no pixel", "bomb", "too long"],
)
def test_anything_else_is_refused(data):
    assert identify_image(data) is None


@given(st.binary(max_size=64), st.sampled_from(sorted(MAKERS)))
def test_damaged_images_raise_nothing(tail, content_type):
    data = MAKERS[content_type]()
    for cut in range(0, len(data), 3):
        identify_image(data[:cut] + tail)


def test_an_image_is_read_from_its_place(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"before" + png() + b"after")
    assert read_image(path, 6, len(png())) == png()


def test_what_is_no_image_any_more_is_not_returned(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"secret" * 100)
    with pytest.raises(ValueError, match="no image"):
        read_image(path, 0, 60)
    with pytest.raises(ValueError, match="no image"):
        read_image(path, 590, 60)
    with pytest.raises(ValueError, match="larger"):
        read_image(path, 0, MAX_IMAGE_BYTES + 1)


def test_links_and_pipes_are_not_opened(tmp_path):
    (tmp_path / "image.png").write_bytes(png())
    (tmp_path / "link").symlink_to(tmp_path / "image.png")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError):
        read_image(tmp_path / "link", 0, len(png()))
    with pytest.raises(ValueError, match="not a file"):
        read_image(tmp_path / "pipe", 0, 10)
