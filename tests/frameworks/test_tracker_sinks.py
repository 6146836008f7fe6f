"""Incidents of a run, recorded at real trackers by processes outside of the training."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from requirements import need

need("torch", "wandb", "trackio", "tensorboard", "mlflow")

import wandb
from support.json_server import JsonServer
from support.notifications import make_notification
from support.rank_processes import until
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sentinel.model.delivery import Rejection
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason, RunContext
from sentinel.notify.trackers import wandb as wandb_calls
from sentinel.notify.transports.send import send
from sentinel.sinks.mlflow import Mlflow
from sentinel.sinks.tensorboard import Tensorboard
from sentinel.sinks.trackio import Trackio
from sentinel.sinks.wandb import Wandb
from sentinel.store import notification_codec

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Keep all files in the test's directory."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "TRACKIO_AUTO_LOG_GPU": "0",
        "MLFLOW_TRACKING_URI": "mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }.items():
        monkeypatch.setenv(name, value)


def notification(runs, reason=NotificationReason.OPENED, **changes):
    made = make_notification(reason, severity=Severity.WARNING, **changes)
    return replace(made, context=RunContext(trackers=runs))


def deliver(sink, sent, number=0):
    """Record it as a sink worker does, after it was stored in the outbox."""
    stored = notification_codec.decode(notification_codec.encode(sent))
    response = send(sink.render(stored, f"{number:08x}".ljust(32, "0"), None))
    return sink.is_accepted(response), sink.explain(response), sink.rejection(response)


def test_mlflow_shows_the_case_and_the_health_of_the_run(tmp_path):
    """Through files, which have no server."""
    import mlflow

    client = mlflow.MlflowClient()
    run = client.create_run(client.create_experiment("e"))
    runs = {"mlflow_run": run.info.run_id, "mlflow_uri": str(tmp_path / "mlruns")}

    def tags():
        found = client.get_run(run.info.run_id).data.tags
        return {name: text for name, text in found.items() if name.startswith("sentinel")}

    assert deliver(Mlflow(), notification(runs))[0]
    (case,) = (name for name in tags() if name.startswith("sentinel.case."))
    assert tags()["sentinel.health"] == "warning"
    assert tags()[case].startswith("warning: ")
    assert "Raise the KL coefficient." in tags()[case]


def test_a_server_of_mlflow_gets_what_its_own_client_would_send():
    """Compared with the requests of the installed library."""
    import mlflow
    from mlflow.entities import RunTag

    info = {"run_id": "r", "run_uuid": "r", "experiment_id": "1", "status": "RUNNING"}
    tags = [{"key": "mlflow.user", "value": "ana"}]
    with JsonServer({"run": {"info": info, "data": {"tags": tags}}}) as server:
        client = mlflow.MlflowClient(server.url)
        client.get_run("r")
        client.log_batch("r", tags=[RunTag("a", "b")])
        theirs, server.requests[:] = list(server.requests), []
        named = {"mlflow_run": "r", "mlflow_uri": server.url}
        assert deliver(Mlflow(server.url, token="secret-token"), notification(named))[0]
        ours = list(server.requests)

    their_read, their_write = theirs[0], theirs[-1]
    assert [each.path for each in ours] == [
        their_read.path.replace("run_uuid=r&", ""),
        their_write.path,
    ]
    sent, expected = ours[1].json, their_write.json
    assert sent["run_id"] == expected["run_id"] == "r"
    assert [tag.keys() for tag in expected["tags"]] == [{"key", "value"}]
    assert {tag["key"] for tag in sent["tags"]} >= {"sentinel.health"}
    assert ours[0].headers["Authorization"] == "Bearer secret-token"


class FakeMlflow:
    """Keeps the tags of one run, as MLflow's server does."""

    def __init__(self):
        self.tags = {"mlflow.user": "ana"}

    def __call__(self, request):
        if request.body:
            self.tags |= {tag["key"]: tag["value"] for tag in request.json["tags"]}
            return {}
        tags = [{"key": key, "value": value} for key, value in self.tags.items()]
        return {"run": {"info": {"run_id": "r"}, "data": {"tags": tags}}}


def test_a_case_that_is_over_leaves_a_healthy_run():
    other = {"detector": "reward_collapse", "episode": 2}
    with JsonServer(receiver := FakeMlflow()) as server:
        named = {"mlflow_run": "r", "mlflow_uri": server.url}

        def health_after(*arguments, **changes):
            assert deliver(Mlflow(), notification(named, *arguments, **changes))[0]
            return receiver.tags["sentinel.health"]

        opened = [health_after(), health_after(**other)]
        resolved = NotificationReason.RESOLVED
        closed = [health_after(resolved), health_after(resolved, **other)]

    assert (opened, closed) == (["warning", "warning"], ["warning", "ok"])
    cases = [text for name, text in receiver.tags.items() if name.startswith("sentinel.case.")]
    assert [text.partition(":")[0] for text in cases] == ["resolved", "resolved"]
    assert receiver.tags["mlflow.user"] == "ana"


def test_tensorboard_shows_the_text_beside_the_curves(tmp_path):
    """The training continues to write: its curves go on, which a file beside it would end."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "tb"))
    writer.add_scalar("kl", 0.25, 1)
    writer.flush()
    runs = {"tensorboard_dir": str(tmp_path / "tb")}
    curves = EventAccumulator(str(tmp_path / "tb"))
    curves.Reload()
    before = len(curves.Scalars("kl"))

    assert deliver(Tensorboard(), notification(runs))[0]
    assert deliver(Tensorboard(), notification(runs))[0]  # A repeat, after a lost response.
    resolved = notification(runs, NotificationReason.RESOLVED)
    assert deliver(Tensorboard(), resolved, 1)[0]
    curves.Reload()
    writer.add_scalar("kl", 0.5, 99)
    writer.close()
    curves.Reload()
    assert len(curves.Scalars("kl")) == before + 1

    texts = EventAccumulator(str(tmp_path / "tb" / "sentinel"))
    texts.Reload()
    assert texts.Tags()["tensors"] == ["kl_blowup"]
    assert texts.PluginTagToContent("text").keys() == {"kl_blowup"}
    opened, closed = texts.Tensors("kl_blowup")
    shown = opened.tensor_proto.string_val[0].decode()
    assert (opened.step, closed.step) == (120, 120)
    assert "Raise the KL coefficient" in shown
    assert not re.search(r"(?<!\\)[<>\[\]]", shown)


def test_a_torn_event_of_tensorboard_hides_none_that_follows(tmp_path):
    (tmp_path / "tb").mkdir()
    named = {"tensorboard_dir": str(tmp_path / "tb")}
    assert deliver(Tensorboard(), notification(named))[0]
    (file,) = (tmp_path / "tb" / "sentinel").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert deliver(Tensorboard(), notification(named), 1)[0]

    texts = EventAccumulator(str(tmp_path / "tb" / "sentinel"))
    texts.Reload()
    (event,) = texts.Tensors("kl_blowup")
    assert b"(00000001)" in event.tensor_proto.string_val[0]


def test_trackio_shows_the_alert_once(monkeypatch):
    import trackio
    from trackio.sqlite_storage import SQLiteStorage
    from trackio.utils import TRACKIO_DIR

    # Another test of this process may have imported it with another directory.
    monkeypatch.setenv("TRACKIO_DIR", str(TRACKIO_DIR))
    project = f"p-{uuid4().hex}"
    run = trackio.init(project=project, embed=False)
    trackio.log({"kl": 0.25})
    runs = {"trackio_project": project, "trackio_run": run.name, "trackio_run_id": run.id}

    until(lambda: project in SQLiteStorage.get_projects(), 240.0, "the project")

    # While the run is alive, and twice, as after a lost response.
    assert deliver(Trackio(), notification(runs))[0]
    assert deliver(Trackio(), notification(runs))[0]
    trackio.alert("of the training")
    trackio.log({"kl": 0.5})
    trackio.finish()

    alerts = SQLiteStorage.get_alerts(project, run_name=run.name)
    assert [alert["level"] for alert in alerts] == ["warn", "warn"]
    (opened,) = (alert for alert in alerts if "Raise the KL" in (alert["text"] or ""))
    assert (opened["step"], opened["run"]) == (120, run.name)
    assert len(SQLiteStorage.get_logs(project, run.name)) == 2
    accepted, remedy, _ = deliver(Trackio(project="mistyped"), notification(runs), 2)
    assert (accepted, "does not know" in remedy) == (False, True)


def test_an_offline_run_of_wandb_says_what_is_possible():
    runs = {"wandb_run": "p/abc", "wandb_offline": "yes"}
    accepted, remedy, rejection = deliver(Wandb(), notification(runs))

    assert (accepted, rejection) == (False, Rejection.PERMANENT)
    assert "`wandb sync`" in remedy


class FakeWandb:
    """Answers the three operations, as W&B's server does."""

    def __init__(self):
        self.tags, self.alerts = ["baseline"], []

    def __call__(self, request):
        query, variables = request.json["query"], request.json["variables"]
        if "notifyScriptableRunAlert" in query:
            self.alerts.append(variables)
            return {"data": {"notifyScriptableRunAlert": {"success": True}}}
        if "upsertBucket" in query:
            assert variables["id"] == "UnVuOjE="
            self.tags = variables["tags"]
            return {"data": {"upsertBucket": {"bucket": {"id": "UnVuOjE="}}}}
        found = {"id": "UnVuOjE=", "tags": self.tags} if variables["runName"] == "abc" else None
        return {"data": {"project": {"run": found}}}


def test_a_run_of_wandb_gets_alerts_and_a_tag():
    receiver = FakeWandb()
    with JsonServer(receiver) as server:
        named = {"wandb_run": "team/p/abc", "wandb_url": "https://unused.example"}
        sink = Wandb(api_key="secret-key", base_url=server.url)
        assert deliver(sink, notification(named))[0]
        assert deliver(sink, notification(named, NotificationReason.RESOLVED), 1)[0]
        unknown = {**named, "wandb_run": "team/p/other"}
        accepted, remedy, _ = deliver(sink, notification(unknown), 2)
        paths = {request.path for request in server.requests}

    assert paths == {"/graphql"}
    assert receiver.tags == ["baseline", "sentinel:kl_blowup"]
    opened, closed = receiver.alerts
    assert (opened["severity"], closed["severity"]) == ("WARN", "INFO")
    assert (opened["entityName"], opened["projectName"], opened["runName"]) == ("team", "p", "abc")
    assert len(opened["title"]) <= 64
    assert "Raise the KL coefficient." in opened["text"]
    assert (accepted, "does not know the run" in remedy) == (False, True)


def test_the_mutation_is_that_of_the_installed_wandb():
    core = Path(wandb.__file__).parent / "bin" / "wandb-core"
    text = re.sub(rb"\s+", b" ", core.read_bytes())

    def fields(query):
        return sorted(re.findall(r"\w+: ?\$\w+", query))

    start = text.index(b"mutation NotifyScriptableRunAlert")
    theirs = text[start : start + 600].decode("ascii", "replace").partition("{ success")[0]
    ours = re.sub(r"\s+", " ", wandb_calls.ALERT_MUTATION)
    assert fields(theirs.replace(":$", ": $")) == fields(ours)
