"""Figures for papers: what they show, how they are embedded, and that they do not change."""

import json
import sys
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from requirements import need
from support.insight_results import LAYERS, line, save_all, surface
from support.layer_records import layer_record
from support.run_databases import write_records
from support.stored_homes import write_run
from torch import nn
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.insight import TrajectoryRecorder, trajectory
from sentinel.insight.figures import plot, plot_curves, plot_layers, save_figure
from sentinel.insight.surface.loss_surface import LossSurface
from sentinel.metrics.stored_state import stored_state
from sentinel.report.comparison import ComparedRun
from sentinel.report.run_figures import FigureError, draw_figure, figure_names
from sentinel.store.artifact import save_artifact
from sentinel.store.run_reader import RunReader

need("matplotlib")

IMPORTANCE = {
    "kind": "importance",
    "outcome": "reward (last)",
    "settings": [
        {"name": "learning_rate", "importance": 0.6, "low": 0.4, "high": 0.8, "same_as": ["lr"]},
        {"name": "seed", "importance": -0.01, "low": -0.1, "high": 0.1, "same_as": []},
    ],
}


def recorded_path(seed):
    torch.manual_seed(seed)
    model = nn.Linear(6, 6)
    recorder = TrajectoryRecorder(model)
    for step in range(20):
        with torch.no_grad():
            model.weight.mul_(0.95).add_(0.1 * torch.randn(6, 6))
        recorder.record(step, 1.0 / (1 + step))
    return trajectory(recorder, save=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with a run of every kind of result, and one with a loss and a path only."""
    home = tmp_path_factory.mktemp("home")
    plain = {"sample_every": 0, "node_every": 0, "save_every": 0, "ranks": 1}
    first = write_run(home, run="first", steps=60, **plain)
    save_all(first.parent)
    save_artifact(first.parent, IMPORTANCE)
    save_artifact(first.parent, recorded_path(0))
    records = [
        layer_record(
            step,
            layer_grad_norm={name: 10.0 ** (index - 6) for index, name in enumerate(LAYERS)},
            layer_grad_cosine={name: np.sin(step + index) for index, name in enumerate(LAYERS)},
        )
        for step in range(1, 60, 3)
    ]
    write_records(first, records)
    second = write_run(home, run="second", steps=40, seed=2, **plain)
    save_artifact(second.parent, recorded_path(1))
    return home


def reported(home, name):
    database = home / "runs" / name / "sentinel.db"
    state = stored_state(database, name)
    return ComparedRun(name, RunReader(database), state, database.parent)


@pytest.fixture(scope="module")
def first(home):
    return reported(home, "first")


@pytest.fixture(scope="module")
def second(home):
    return reported(home, "second")


def texts(figure):
    return [
        each.get_text()
        for axes in figure.axes
        for each in (axes.xaxis.label, axes.yaxis.label)
        if each.get_text()
    ]


def test_every_figure_of_a_run_is_a_vector_with_embedded_fonts(first, tmp_path):
    names = figure_names([first])
    signals = {each["name"] for each in first.reader.signals()}

    assert {
        *("loss", "loss_surface", "loss_surface_3d", "trajectory", "gradient_flow"),
        *("layer_grad_norm", "layer_grad_cosine", "importance", "loss_surface-40"),
        *("loss_surface_3d-40", "loss_surface-interpolation-200"),
    } <= {*names}
    # It has one direction.
    assert "loss_surface_3d-interpolation-200" not in names
    assert len(signals & {*names}) > 5
    # Those of earlier steps are drawn as the newest is.
    earlier = {name for name in names if "-" in name and "interpolation-200" not in name}
    for name in ["loss", *({*names} - signals - earlier)]:
        figure = draw_figure([first], name)
        pdf = save_figure(figure, tmp_path / f"{name}.pdf").read_bytes()
        svg = save_figure(figure, tmp_path / f"{name}.svg").read_bytes()

        assert pdf.startswith(b"%PDF-")
        assert b"/FontFile2" in pdf
        assert b"/Type3" not in pdf
        assert b"CreationDate" not in pdf
        root = ET.fromstring(svg)
        assert root.get("width") == "237.6pt"  # 3.3 inches
        assert not [*root.iter("{http://www.w3.org/2000/svg}image")]
        assert b"<dc:date" not in svg


@pytest.mark.parametrize("suffix", ["pdf", "svg", "png"])
def test_the_same_data_are_the_same_file_whatever_the_user_has_set(tmp_path, suffix):
    import matplotlib as mpl

    one = save_figure(plot(surface(200)), tmp_path / f"one.{suffix}").read_bytes()
    with mpl.rc_context({"font.size": 20, "image.cmap": "jet", "savefig.dpi": 50}):
        two = save_figure(plot(surface(200)), tmp_path / f"two.{suffix}").read_bytes()

    assert one == two
    assert len([*tmp_path.iterdir()]) == 2


def test_a_surface_has_titles_ticks_and_its_whole_path():
    figure = plot(surface(200))

    assert texts(figure) == [
        "hessian (eigenvalue 38.4)\n1 = 1.2 (L2), 4 % of the weights",
        "pca (63 % of the path)\n1 = 0.9 (L2), 3 % of the weights",
        "loss (red: not finite)",
    ]
    plane, bar = figure.axes
    path, start = (each for each in plane.lines[:2])
    assert len(path.get_xdata()) == 60
    assert [*start.get_xdata()] == [path.get_xdata()[0]]
    assert len(bar.get_yticks()) >= 3
    scene = plot(surface(200), picture="3d").axes[0]
    assert scene.get_zlabel() == "loss"
    assert len(scene.lines[0].get_data_3d()[0]) == 60


def test_a_constant_loss_that_differs_in_the_last_digit_is_drawn():
    """As of LoRA before its first step."""
    flat = surface(size=11)
    low, high = 1.0986123085021973, 1.0986123085021975
    flat["loss"] = [[low if number % 2 else high for number in range(11)] for _ in range(11)]
    assert plot(flat).axes


def test_a_part_that_is_finer_is_drawn_on_the_surface():
    part = {"x": [0.0, 0.1, 0.2], "y": [0.0, 0.1, 0.2], "loss": [[1.6] * 3] * 3}

    plain, finer = (plot(surface(200, regions=each)) for each in ([], [part]))

    assert len(finer.axes[0].collections) == len(plain.axes[0].collections) + 2


def test_a_part_that_is_finer_is_drawn_instead_of_the_surface_in_three_dimensions():
    """A valley that the coarse points miss: 4 at their edges, 1 inside."""
    coarse = {"x": [0.0, 0.5, 1.0], "y": [0.0, 0.5, 1.0], "loss": [[4.0] * 3] * 3}
    axis = [0.0, 0.25, 0.5, 0.75, 1.0]
    part = {"x": axis, "y": axis, "loss": [[4.0] * 5, *[[4.0, 1.0, 1.0, 1.0, 4.0]] * 3, [4.0] * 5]}
    data = surface(200) | coarse | {"trajectory": [], "center": {"x": 0.5, "y": 0.5, "loss": 1.0}}

    scene = plot({**data, "regions": [part]}, picture="3d").axes[0]

    heights = [each.get_array() for each in scene.collections]
    assert len(heights) == 2
    assert heights[1].min() < 4.0
    (_, _, (center,)) = scene.lines[0].get_data_3d()
    assert center < 1.5


def test_a_line_has_the_loss_at_its_axis():
    assert texts(plot(line(3))) == ["random\n1 = 1 (L2), 3.3 % of the weights", "loss"]


def test_several_runs_are_compared_by_signal_and_path(first, second):
    names = figure_names([first, second])

    assert {"loss", "trajectory"} <= {*names}
    assert "loss_surface" not in names
    (axes,) = draw_figure([first, second], "loss").axes
    labels = [each.get_text() for each in axes.get_legend().get_texts()]
    assert labels == ["first", "second"]
    assert len({each.get_linestyle() for each in axes.lines}) == 2
    (plane,) = draw_figure([first, second], "trajectory").axes
    assert len(plane.get_legend().get_texts()) == 2


def test_another_attempt_is_not_joined_to_the_one_before():
    curve = {"x": [1, 2, 1, 2], "mean": [4.0, 3.0, 4.5, None], "attempt": [0, 0, 1, 1], "bad": [2]}

    (axes,) = plot_curves({"run": {**curve, "is_raw": True}}, "Loss").axes

    assert np.isnan(axes.lines[0].get_ydata()[2])
    assert [*axes.lines[1].get_xdata()] == [2]


def test_zero_and_infinite_gradients_have_colours_of_their_own():
    grid = {
        "statistic": "layer_grad_norm",
        "layers": ["a", "b", "c"],
        "x": [1, 2],
        "values": [[1e-3, 1e-30], [0.0, None], [1.0, None]],
        "bad": [[], [], [1]],
    }

    axes, bar = plot_layers(grid).axes

    (mesh,) = axes.collections
    values, norm = np.ma.filled(mesh.get_array(), np.nan).reshape(3, 2), mesh.norm
    assert norm.vmin == pytest.approx(1e-12)
    assert values[0, 1] == norm.vmin
    assert values[1, 0] < norm.vmin
    assert values[2, 1] > norm.vmax
    assert bar.get_ylabel() == "gradient norm (L2), logarithmic\nblue: 0, red: infinite"


def test_what_has_no_figure_is_named(first, second, tmp_path, monkeypatch):
    with pytest.raises(FigureError, match=r"no figure 'lss' of the run first\. It has: "):
        draw_figure([first], "lss")
    with pytest.raises(FigureError, match="of these runs"):
        draw_figure([first, second], "loss_surface")
    with pytest.raises(ValueError, match="no picture '4d' of loss_surface: it has contour or 3d"):
        plot(surface(1), picture="4d")
    with pytest.raises(ValueError, match="no figure of a result of the kind 'sharpness'"):
        plot({"kind": "sharpness"})
    with pytest.raises(ValueError, match="not finite anywhere"):
        plot(surface(1, loss=[[None] * 41] * 41))
    with pytest.raises(ValueError, match=r"\.pdf, \.svg, \.png"):
        save_figure(plot(line(1)), tmp_path / "figure.bmp")
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    with pytest.raises(ImportError, match=r"train-sentinel\[figures\]"):
        plot(line(1))


def test_a_result_and_its_stored_data_have_the_same_figure(tmp_path):
    data = json.loads(json.dumps(line(3)))
    stored = save_figure(plot(data), tmp_path / "stored.svg").read_bytes()
    result = save_figure(plot(LossSurface.from_json(data)), tmp_path / "result.svg").read_bytes()

    assert stored == result


@pytest.fixture
def command(home, monkeypatch, tmp_path):
    monkeypatch.setenv("SENTINEL_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["report", *arguments])


def test_the_command_lists_and_writes_figures(command, tmp_path):
    listed = command("first", "--figure", "list")
    written = command("first", "--figure", "loss_surface_3d", "-o", "surface.svg", "--width", "5")
    default = command("first", "second", "--figure", "loss")

    assert listed.exit_code == written.exit_code == default.exit_code == 0, written.stderr
    assert "loss_surface_3d " in listed.stdout
    assert ET.parse(tmp_path / "surface.svg").getroot().get("width") == "360pt"
    assert (tmp_path / "loss.pdf").read_bytes().startswith(b"%PDF-")


def test_the_insight_commands_write_figures_too(command, tmp_path):
    done = CliRunner().invoke(app, ["insight", "trajectory", "first", "-o", "path.svg"])

    assert done.exit_code == 0, done.stderr
    assert ET.parse(tmp_path / "path.svg").getroot().get("width") == "237.6pt"
    done = CliRunner().invoke(app, ["insight", "trajectory", "first", "-o", "no/path.svg"])
    assert "cannot write no/path.svg" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("first", "--figure", "lss"), "There is no figure 'lss' of the run first. It has: "),
        (("first", "--figure", "loss", "-o", "a.bmp"), "a.bmp is no .pdf, .svg, .png file"),
        (("first", "--figure", "loss", "-o", "no/a.pdf"), "cannot write no/a.pdf: No such file"),
        (("first", "--figure", "loss", "--png"), "give one of --md, --json, --png and --figure"),
    ],
)
def test_the_command_names_what_is_wrong(command, arguments, message):
    done = command(*arguments)

    assert done.exit_code == 2
    assert message in done.stderr
