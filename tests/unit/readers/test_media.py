"""Images and histograms of TensorBoard and W&B files, and damaged ones."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from random import Random

import pytest
from support.event_files import event, event_file, field, varint
from support.images import png
from support.wandb_files import framed, row

from sentinel.readers.format_detection import open_log
from sentinel.readers.image_bytes import read_image
from sentinel.readers.media import MAX_BINS, histogram_body

EDGES, COUNTS = [0.0, 1.0, 2.0], [3.0, 4.0]


def media_of(path):
    """The media of a log, and its records."""
    found = []
    records = [*replace(open_log(path), on_media=found.append)]
    return found, records


def doubles(*numbers):
    return struct.pack(f"<{len(numbers)}d", *numbers)


def summary(step, tag, *parts, time=1.7e9):
    """Payload of an event with one value of these fields."""
    value = field(1, tag.encode()) + b"".join(parts)
    return b"\x09" + struct.pack("<d", time) + b"\x10" + varint(step) + field(5, field(1, value))


def torch_image(data):
    return field(4, b"\x08\x01\x10\x02\x18\x01" + field(4, data))


def torch_histogram(limits, counts):
    low = b"\x09" + doubles(0.0) + b"\x11" + doubles(2.0)
    return field(5, low + field(6, doubles(*limits)) + field(7, doubles(*counts)))


def tensor_images(*images):
    shape = field(2, field(2, b"\x08\x03"))
    texts = b"".join(field(8, part) for part in (b"2", b"1", *images))
    return field(8, b"\x08\x07" + shape + texts)


def tensor_histogram(rows):
    shape = field(2, field(2, b"\x08\x02") + field(2, b"\x08\x03"))
    return field(8, b"\x08\x02" + shape + field(4, doubles(*(x for each in rows for x in each))))


def test_images_of_torch_are_found_where_they_are_in_the_file(tmp_path):
    path = event_file(
        tmp_path / "run", event(1, "loss", 2.0), summary(7, "drawn", torch_image(png(48, 32)))
    )
    (image,), records = media_of(path.parent)
    assert (image.name, image.step, image.time, image.kind) == ("drawn", 7, 1.7e9, "image")
    assert read_image(image.source, image.offset, image.length) == png(48, 32)
    assert [each.step for each in records] == [1, 1]


def test_several_images_of_one_tag_have_names_of_their_own(tmp_path):
    path = event_file(tmp_path / "run", summary(7, "drawn", tensor_images(png(), png(3, 3))))
    found, _ = media_of(path)
    assert [each.name for each in found] == ["drawn", "drawn/1"]
    assert read_image(found[1].source, found[1].offset, found[1].length) == png(3, 3)


@pytest.mark.parametrize(
    "part",
    [
        torch_histogram([1.0, 1.8e308], COUNTS),
        tensor_histogram([(0.0, 1.0, 3.0), (1.0, 2.0, 4.0)]),
    ],
    ids=["torch", "TensorFlow 2"],
)
def test_histograms_have_edges_and_counts(tmp_path, part):
    (found,), _ = media_of(event_file(tmp_path / "run", summary(7, "weights", part)))
    assert (found.name, found.step, found.kind) == ("weights", 7, "histogram")
    assert json.loads(found.body) == {"edges": EDGES, "counts": COUNTS}


def test_what_is_neither_is_left_out(tmp_path):
    path = event_file(
        tmp_path / "run",
        summary(1, "svg", torch_image(b"<svg onload=alert(1)>" + bytes(64))),
        summary(2, "descending", torch_histogram([2.0, 1.0, 0.5], [1.0, 1.0, 1.0])),
        summary(3, "nan", tensor_histogram([(0.0, float("nan"), 1.0)] * 4)),
        summary(4, "text", field(8, b"\x08\x07" + field(8, b"x" * 80))),
    )
    assert [each.name for each in media_of(path)[0]] in ([], ["descending"])


def test_fine_histograms_get_fewer_bins():
    body = json.loads(histogram_body(range(5002), [1] * 5001))
    assert len(body["counts"]) <= MAX_BINS
    assert (sum(body["counts"]), body["edges"][0], body["edges"][-1]) == (5001, 0, 5001)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_files_raise_nothing(tmp_path, seed):
    random = Random(seed)
    path = event_file(
        tmp_path / "run",
        summary(1, "drawn", tensor_images(png(), png())),
        summary(2, "weights", torch_histogram([1.0, 2.0], COUNTS)),
    )
    data = bytearray(path.read_bytes())
    for _ in range(random.randrange(1, 20)):
        data[random.randrange(len(data))] = random.randrange(256)
    path.write_bytes(data)
    media_of(path.parent)


def item(key, value, *nested):
    names = b"".join(field(2, part.encode()) for part in nested)
    key_field = names or field(1, key.encode())
    return field(1, key_field + field(16, json.dumps(value).encode()))


def wandb_run(folder, *items):
    """The file of a run, whose second row has these items."""
    (folder / "files" / "media").mkdir(parents=True)
    (folder / "files" / "media" / "a.png").write_bytes(png())
    step = item("_step", 5) + item("_timestamp", 1.7e9)
    path = folder / "run-x.wandb"
    path.write_bytes(framed(row(1, 2.0), field(2, b"".join((step, *items)))))
    return path


def test_wandb_images_and_histograms_of_both_encodings(tmp_path):
    path = wandb_run(
        tmp_path,
        item("old", {"_type": "image-file", "path": "media/a.png", "width": 2}),
        item("", "image-file", "new", "_type"),
        item("", "media/a.png", "new", "path"),
        item("", 2, "new", "width"),
        item("h", {"_type": "histogram", "values": [3, 4], "bins": [0, 1, 2]}),
        item("p", {"_type": "histogram", "values": [3, 4],
                   "packedBins": {"min": 0, "size": 1, "count": 2}}),
        item("many", {"_type": "images/separated", "filenames": ["media/a.png", "media/a.png"]}),
    )  # fmt: skip
    found, records = media_of(path)
    images = [each for each in found if each.kind == "image"]
    assert {each.name for each in images} == {"old", "new", "many", "many/1"}
    assert {(each.step, each.time) for each in found} == {(5, 1.7e9)}
    assert all(read_image(x.source, x.offset, x.length) == png() for x in images)
    histograms = [json.loads(each.body) for each in found if each.kind == "histogram"]
    assert histograms == [{"edges": EDGES, "counts": COUNTS}] * 2
    # The width of an image is no metric.
    assert not any("new/width" in record.values for record in records)


@pytest.mark.parametrize(
    "name", ["../outside.png", "/etc/passwd", "media/../../outside.png", "media/link.png", "\0", 7]
)
def test_wandb_images_are_only_those_in_the_directory_of_the_run(tmp_path, name):
    (tmp_path / "outside.png").write_bytes(png())
    folder = tmp_path / "run"
    path = wandb_run(folder, item("img", {"_type": "image-file", "path": name}))
    (folder / "files" / "media" / "link.png").symlink_to(tmp_path / "outside.png")
    assert media_of(path)[0] == []


@pytest.mark.parametrize(
    "value",
    [
        {"_type": "histogram"},
        {"_type": "histogram", "values": 1, "bins": 2},
        {"_type": "histogram", "values": [1], "bins": [0, 10**400]},
        {"_type": "histogram", "values": ["a"], "bins": [0, 1]},
        {"_type": "histogram", "values": [1], "packedBins": {"min": "x", "count": 10**18}},
        {"_type": "image-file"},
        {"_type": "images/separated", "filenames": {"a": 1}},
        {"_type": []},
    ],
)
def test_wandb_objects_that_are_damaged_raise_nothing(tmp_path, value):
    assert media_of(wandb_run(tmp_path, item("x", value)))[0] == []
