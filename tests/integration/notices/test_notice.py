"""Notices of four services, over real HTTP: seen in time, once, and whatever the server does."""

from __future__ import annotations

import http.server
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from dray.cluster import watching
from dray.notices import (
    BaseUrls,
    Host,
    Notice,
    NoticeKind,
    Source,
    SourceError,
    Watcher,
    detect_cloud,
    pod_sources,
)
from dray.notices.asking import ask
from dray.notices.aws import INTERRUPTION, REBALANCE, AwsSource, Imds
from dray.notices.azure_events import AzureSource
from dray.notices.gcp import MAINTENANCE, PREEMPTED, GcpSource
from dray.notices.kube import ApiServer, NodeSource, PodSource
from tests.support.metadata_faces import ACCOUNT_TOKEN, NAMESPACE, NODE, POD, VM
from tests.support.metadata_server import MetadataServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        yield server


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def aws(server: MetadataServer, path: str = INTERRUPTION) -> AwsSource:
    return AwsSource(path, Imds(server.url))


def interrupt(server: MetadataServer, action: str = "terminate", at: float | None = None) -> None:
    notice = {"action": action, "time": stamp(at or time.time() + 120)}
    server.put("aws", {"spot/instance-action": notice})


def schedule(server: MetadataServer, **changes: Any) -> dict[str, Any]:
    event = {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EventStatus": "Scheduled",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": [VM],
        "NotBefore": formatdate(time.time() + 30, usegmt=True),
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    } | changes
    server.put("azure", {"events": [event]})
    return event


class Seen:
    """What a watcher handed on, and when."""

    def __init__(self, sources: Iterable[Source], seed: int) -> None:
        self.notices: list[Notice] = []
        self.watcher = Watcher(sources, self.notices.append, rng=random.Random(seed))

    def wait(self, enough: Callable[[], bool], seconds: float = 10.0) -> float:
        """Seconds until there is enough."""
        began = time.monotonic()
        while not enough():
            assert time.monotonic() - began < seconds, self.notices
            time.sleep(0.01)
        return time.monotonic() - began


@pytest.fixture
def watch(seed: int) -> Iterator[Callable[..., Seen]]:
    started: list[Seen] = []

    def start(*sources: Source) -> Seen:
        started.append(Seen(sources, seed))
        started[-1].watcher.start()
        return started[-1]

    yield start
    for seen in started:
        seen.watcher.stop()


# -- each service, one look -----------------------------------------------------------------


def test_an_aws_interruption_has_its_action_and_deadline(server: MetadataServer) -> None:
    source = aws(server)
    assert source.poll() == []  # 404 is the answer of a healthy instance
    at = float(int(time.time()) + 120)
    interrupt(server, "hibernate", at)
    (notice,) = source.poll()
    assert (notice.source, notice.kind, notice.action) == ("aws", NoticeKind.INTERRUPTION, "hibernate")
    assert notice.deadline == at
    assert notice.id == source.poll()[0].id
    assert notice.ends_node


def test_an_aws_recommendation_is_a_risk_without_a_deadline(server: MetadataServer) -> None:
    server.put("aws", {"events/recommendations/rebalance": {"noticeTime": stamp(time.time())}})
    (notice,) = aws(server, REBALANCE).poll()
    assert (notice.kind, notice.deadline, notice.ends_node) == (NoticeKind.REBALANCE, None, False)


def test_an_expired_token_is_renewed_within_the_same_look(server: MetadataServer) -> None:
    source = aws(server)
    source.poll()
    assert len(server.asked("/latest/api/token")) == 1
    source.poll()
    assert len(server.asked("/latest/api/token")) == 1  # kept
    server.expire_tokens()
    interrupt(server)
    assert len(source.poll()) == 1
    assert [status for _, path, status in server.asked() if "instance-action" in path] == [404, 404, 401, 200]
    assert len(server.asked("/latest/api/token")) == 2


def test_a_clock_that_is_an_hour_off_does_not_move_the_deadline(server: MetadataServer) -> None:
    server.behave(clock=3600.0)  # the cloud's clock is right, this node's is slow
    interrupt(server, at=time.time() + 3600 + 120)
    (notice,) = aws(server).poll()
    left = notice.seconds_left(time.time())
    assert left is not None
    assert 115 < left < 122


def test_a_gcp_preemption_has_thirty_seconds(server: MetadataServer) -> None:
    source = GcpSource(PREEMPTED, server.url, wait=1)
    assert source.poll() == []
    server.put("gcp", {"preempted": "TRUE"})
    (notice,) = source.poll()
    assert (notice.source, notice.kind, notice.action) == ("gcp", NoticeKind.INTERRUPTION, "preempted")
    assert notice.deadline == notice.seen_at + 30
    assert [again.id for again in source.poll()] == [notice.id]


@pytest.mark.parametrize(
    ("value", "ends"), [("TERMINATE_ON_HOST_MAINTENANCE", True), ("MIGRATE_ON_HOST_MAINTENANCE", False)]
)
def test_gcp_maintenance(server: MetadataServer, value: str, ends: bool) -> None:
    server.put("gcp", {"maintenance-event": value})
    (notice,) = GcpSource(MAINTENANCE, server.url).poll()
    assert (notice.kind, notice.action, notice.ends_node) == (NoticeKind.MAINTENANCE, value, ends)


def test_gcp_says_it_an_hour_before_where_there_are_gpus(server: MetadataServer, tmp_path: Path) -> None:
    ended = "TERMINATE_ON_HOST_MAINTENANCE"
    for gpu, ahead in (tmp_path, 3600), (tmp_path / "none", 60):
        server.put("gcp", {"maintenance-event": "NONE"})
        source = GcpSource(MAINTENANCE, server.url, wait=1, gpu=gpu)
        assert source.poll() == []
        server.put("gcp", {"maintenance-event": ended})
        (notice,) = source.poll()
        assert notice.deadline == pytest.approx(time.time() + ahead, abs=5)
        (late,) = GcpSource(MAINTENANCE, server.url, wait=1, gpu=gpu).poll()
        assert late.deadline is None  # it was there before we were


def test_gcp_answers_the_moment_a_value_changes(server: MetadataServer) -> None:
    source = GcpSource(PREEMPTED, server.url, wait=8)
    source.poll()
    threading.Timer(0.5, server.put, ("gcp", {"preempted": "TRUE"})).start()
    began = time.monotonic()
    assert len(source.poll()) == 1
    assert 0.4 < time.monotonic() - began < 3
    (_, first, _), (_, second, _) = server.asked("preempted")
    assert "wait_for_change=true&last_etag=0&" in first
    assert "last_etag=0&" not in second


def test_azure_events_are_those_of_this_machine(server: MetadataServer) -> None:
    source = AzureSource(VM, server.url)
    assert source.poll() == []
    at = float(int(time.time()) + 30)
    event = schedule(server, Resources=["another", VM.upper()], NotBefore=formatdate(at, usegmt=True))
    (notice,) = source.poll()
    assert (notice.source, notice.kind, notice.action) == ("azure", NoticeKind.INTERRUPTION, "Preempt")
    assert notice.deadline == at
    assert notice.id == f"azure/{event['EventId']}"
    schedule(server, Resources=["another"])
    assert source.poll() == []


def test_an_azure_event_that_has_started_is_due_now(server: MetadataServer) -> None:
    source = AzureSource(VM, server.url)
    schedule(server, EventType="Redeploy", NotBefore=formatdate(time.time() + 600, usegmt=True))
    (planned,) = source.poll()
    schedule(server, EventType="Redeploy", EventStatus="Started", NotBefore="")
    (started,) = source.poll()
    assert started.id != planned.id
    assert started.deadline is not None
    assert started.deadline <= time.time()
    assert started.id == f"{planned.id}/started"


def test_the_first_answer_of_azure_may_take_its_time(server: MetadataServer) -> None:
    server.behave(delay=1.4)
    source = AzureSource(VM, server.url)
    assert source.poll() == []
    with pytest.raises(SourceError):  # once it has answered, a second is enough
        source.poll()
    assert source.poll() == []  # and then it is given time again


def kubernetes(server: MetadataServer, token: str = ACCOUNT_TOKEN) -> tuple[PodSource, NodeSource]:
    api = ApiServer(server.url, lambda: token)
    pod = PodSource(api, NAMESPACE, POD)
    return pod, NodeSource(api, lambda: pod.node)


def test_a_deleted_pod_dies_at_its_timestamp(server: MetadataServer) -> None:
    pod, _ = kubernetes(server)
    assert pod.poll() == []
    assert (pod.node, pod.grace) == (NODE, 45.0)
    at = float(int(time.time()) + 45)
    server.put("kubernetes", {"pod_deleted": stamp(at)})
    (notice,) = pod.poll()
    assert (notice.source, notice.kind, notice.deadline) == ("kubernetes", NoticeKind.TERM, at)


def test_taints_that_announce_an_end_and_those_that_do_not(server: MetadataServer) -> None:
    pod, node = kubernetes(server)
    assert node.poll() == []  # its name is not known yet
    pod.poll()
    for_ever = {"key": "kubernetes.azure.com/scalesetpriority", "value": "spot", "effect": "NoSchedule"}
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    server.put("kubernetes", {"taints": [for_ever, cordon]})
    assert node.poll() == []
    itn = {"key": "aws-node-termination-handler/spot-itn", "value": "spot-itn-12", "effect": "NoSchedule"}
    server.put("kubernetes", {"taints": [for_ever, itn], "node_deleted": stamp(time.time())})
    found = {notice.action: notice for notice in node.poll()}
    assert set(found) == {"aws-node-termination-handler/spot-itn", "node-deleted"}
    assert {notice.kind for notice in found.values()} == {NoticeKind.TAINT}
    assert {notice.id for notice in node.poll()} == {notice.id for notice in found.values()}


def test_a_service_account_that_may_not_read_nodes_still_sees_its_pod(server: MetadataServer) -> None:
    server.put("kubernetes", {"may_read_nodes": False, "pod_deleted": stamp(time.time() + 45)})
    pod, node = kubernetes(server)
    assert len(pod.poll()) == 1
    with pytest.raises(SourceError, match="give the pod's service account `get`"):
        node.poll()


def test_a_wrong_service_account_token_is_an_error(server: MetadataServer) -> None:
    with pytest.raises(SourceError, match="status 401"):
        kubernetes(server, "stale")[0].poll()


# -- servers that misbehave -----------------------------------------------------------------

FAULTS = ("busy", "junk", "redirect", "huge", "not-http", "hang", "drip", "reset")


def every_source(server: MetadataServer) -> dict[str, Source]:
    pod, node = kubernetes(server)
    pod.node = NODE
    return {
        "aws": aws(server),
        "rebalance": aws(server, REBALANCE),
        "preempted": GcpSource(PREEMPTED, server.url, wait=1),
        "maintenance": GcpSource(MAINTENANCE, server.url, wait=1),
        "azure": AzureSource(VM, server.url, first_timeout=1.0),
        "pod": pod,
        "node": node,
    }


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_error_or_no_notice_within_a_second(server: MetadataServer, fault: str) -> None:
    sources = every_source(server)
    server.behave(fault=fault)
    outcomes: dict[str, tuple[object, float]] = {}

    def look(name: str, source: Source) -> None:
        began = time.monotonic()
        try:
            found: object = source.poll()
        except SourceError as error:
            found = error
        outcomes[name] = (found, time.monotonic() - began)

    threads = [threading.Thread(target=look, args=one) for one in sources.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert set(outcomes) == set(sources)
    for name, (found, seconds) in outcomes.items():
        assert isinstance(found, SourceError) or found == [], (name, found)
        assert seconds < 2.5, (name, seconds)
        assert "Wi-Fi" not in str(found)
    server.behave()
    interrupt(server)
    assert len(sources["aws"].poll()) == 1  # it forgot nothing that it needs
    server.put("gcp", {"preempted": "TRUE"})
    assert len(sources["preempted"].poll()) == 1


def test_no_descriptor_is_left_open(server: MetadataServer) -> None:
    source = aws(server)
    source.poll()
    for fault in (None, "huge", "not-http", "reset", "busy"):
        server.behave(fault=fault)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(20):
            with suppress(SourceError):
                source.poll()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1, fault


def test_redirects_are_not_followed(server: MetadataServer) -> None:
    server.behave(fault="redirect")
    assert ask(server.url, "/latest/api/token", method="PUT").status == 302
    assert server.asked("elsewhere") == []


def test_proxies_are_not_used(server: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    interrupt(server)
    assert len(aws(server).poll()) == 1


# -- the watcher ----------------------------------------------------------------------------


@pytest.mark.heavy
def test_each_notice_is_handed_on_once_and_in_time(server: MetadataServer, watch: Any) -> None:
    sources = every_source(server)
    seen = watch(*sources.values())
    time.sleep(0.5)
    assert seen.notices == []
    interrupt(server)
    server.put("gcp", {"preempted": "TRUE"})
    schedule(server)
    server.put("kubernetes", {"pod_deleted": stamp(time.time() + 45)})
    seconds = seen.wait(lambda: len(seen.notices) >= 4)
    assert seconds < 8.0
    time.sleep(2.5)  # a few looks more
    assert sorted(notice.source for notice in seen.notices) == ["aws", "azure", "gcp", "kubernetes"]


@pytest.mark.heavy
def test_a_notice_that_lies_is_withdrawn_and_may_come_again(server: MetadataServer, watch: Any) -> None:
    seen = watch(GcpSource(MAINTENANCE, server.url, wait=2), aws(server))
    for times in (1, 2):
        server.put("gcp", {"maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"})
        interrupt(server, at=1_800_000_000)
        seen.wait(lambda times=times: len(seen.notices) == 2 * times)
        assert {notice.source for notice in seen.notices[-2:]} == {"aws", "gcp"}
        server.put("gcp", {"maintenance-event": "NONE"})
        server.put("aws", {"spot/instance-action": None})
        looks = {part: len(server.asked(part)) for part in ("maintenance-event", "instance-action")}
        seen.wait(lambda looks=looks: all(len(server.asked(part)) > n + 1 for part, n in looks.items()))


def test_the_watcher_outlives_faults_and_callbacks_that_raise(
    server: MetadataServer, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Notice] = []

    def callback(notice: Notice) -> None:
        calls.append(notice)
        raise RuntimeError("a prompt")

    with Watcher([aws(server)], callback):
        server.behave(fault="reset")
        time.sleep(0.3)
        server.behave()
        interrupt(server)
        deadline = time.monotonic() + 12
        while not calls and time.monotonic() < deadline:
            time.sleep(0.02)
        interrupt(server, "stop")
        while len(calls) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert [notice.action for notice in calls] == ["terminate", "stop"]
    assert "RuntimeError in a callback" in caplog.text
    assert "a prompt" not in caplog.text


@pytest.mark.heavy
def test_a_server_that_fails_is_asked_less_often_and_forgiven(server: MetadataServer, watch: Any) -> None:
    server.behave(fault="busy")
    seen = watch(aws(server))
    time.sleep(4.0)
    assert 1 <= len(server.asked("token")) <= 4
    server.behave()
    interrupt(server)
    assert seen.wait(lambda: len(seen.notices) == 1, 15.0) < 12.0


def test_a_server_that_does_not_wait_is_not_asked_in_a_loop(server: MetadataServer, watch: Any) -> None:
    server.put("gcp", {"preempted": "TRUE"})
    source = GcpSource(PREEMPTED, server.url, wait=0)
    seen = watch(source)
    time.sleep(2.3)
    assert len(seen.notices) == 1
    assert len(server.asked("preempted")) <= 4


def test_stopping_does_not_wait_for_a_long_answer(server: MetadataServer) -> None:
    calls: list[Notice] = []
    watcher = Watcher([GcpSource(PREEMPTED, server.url, wait=30)], calls.append)
    watcher.start()
    time.sleep(1.5)  # now the second look waits for a change
    began = time.monotonic()
    watcher.stop(0.3)
    assert time.monotonic() - began < 10
    server.put("gcp", {"preempted": "TRUE"})
    time.sleep(0.5)
    assert calls == []


# -- which cloud ----------------------------------------------------------------------------


def detected(server: MetadataServer, *faces: str) -> Host:
    server.behave(faces=faces or ("none",))
    urls = BaseUrls(aws=server.url, gcp=server.url, azure=server.url)
    return detect_cloud(urls)


def test_each_cloud_is_known_by_its_own_answers(server: MetadataServer) -> None:
    found = detected(server, "aws")
    assert (found.cloud, found.name, found.spot) == ("aws", "i-0123456789abcdef0", True)
    assert [source.name for source in found.sources] == ["aws", "aws"]
    found = detected(server, "gcp")
    assert (found.cloud, found.name, found.spot) == ("gcp", "gpu-spot-1", True)
    assert [source.name for source in found.sources] == ["gcp", "gcp"]
    found = detected(server, "azure")
    assert (found.cloud, found.name, found.spot) == ("azure", VM, True)
    assert [source.name for source in found.sources] == ["azure"]
    assert detected(server) == Host()


def test_a_cloud_that_is_slow_to_answer_is_found_later(
    server: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_PAUSES", (0.2, 0.2))
    for cloud in ("AWS", "GCP", "AZURE"):
        monkeypatch.setenv(f"DRAY_METADATA_{cloud}", server.url)
    interrupt(server)
    server.behave(faces=("none",))
    watch = watching.NodeWatch()
    time.sleep(1.0)
    assert watch.heard().notices == []
    server.behave(faces=("aws",))
    deadline = time.monotonic() + 10
    while not watch.heard().notices:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_spot_node_without_a_metadata_service_is_told(
    server: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a pod of EC2 whose instance has a hop limit of 1: the driver is to say why no notice comes."""
    monkeypatch.setattr(watching, "_PAUSES", (0.01, 0.01))
    monkeypatch.setattr(watching, "_TRIES", 2)
    for cloud in ("AWS", "GCP", "AZURE"):
        monkeypatch.setenv(f"DRAY_METADATA_{cloud}", server.url)
    server.behave(faces=("none",))
    spot = watching.NodeWatch(spot=True)
    deadline = time.monotonic() + 30
    told: list[str] = []
    while not told:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        told = [line for line in spot.heard().told if "hop limit" in line]
    assert len(told) == 1


def test_an_on_demand_instance_is_not_watched(server: MetadataServer) -> None:
    server.put("aws", {"instance-life-cycle": "on-demand"})
    found = detected(server, "aws")
    assert (found.cloud, found.spot, found.sources) == ("aws", False, ())


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("fault", FAULTS)
def test_detection_ends_in_time_whatever_answers(server: MetadataServer, fault: str) -> None:
    server.behave(fault=fault)
    urls = BaseUrls(aws=server.url, gcp=server.url, azure=server.url)
    began = time.monotonic()
    assert detect_cloud(urls) == Host()
    assert time.monotonic() - began < 8


def test_nothing_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        urls = BaseUrls(
            aws=f"http://127.0.0.1:{silent.getsockname()[1]}",  # takes connections and says nothing
            gcp=f"http://127.0.0.1:{unused.getsockname()[1]}",  # refuses them
            azure="http://[::1]:1",
        )
        began = time.monotonic()
        assert detect_cloud(urls) == Host()
        assert time.monotonic() - began < 8


def test_a_web_server_is_no_cloud(tmp_path: Path) -> None:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{web.server_address[1]}"
        assert detect_cloud(BaseUrls(aws=url, gcp=url, azure=url)) == Host()
        web.shutdown()


def test_in_a_pod_the_api_server_is_a_source_too(server: MetadataServer, tmp_path: Path) -> None:
    server.behave(faces=("kubernetes",))
    for name, text in {
        "token": ACCOUNT_TOKEN + "\n",
        "namespace": NAMESPACE,
        "ca.crt": server.certificate.read_text(),
    }.items():
        (tmp_path / name).write_text(text)
    environ = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": server.tls_url.rpartition(":")[2],
        "HOSTNAME": POD,
    }
    found = pod_sources(environ, tmp_path)
    assert [source.name for source in found] == ["kubernetes", "kubernetes"]
    server.put("kubernetes", {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]})
    pod, node = found
    assert pod.poll() == []
    (notice,) = node.poll()
    assert notice.action == "karpenter.sh/disrupted"
    server.put("kubernetes", {"token": "the next one"})
    with pytest.raises(SourceError, match="status 401"):
        pod.poll()
    (tmp_path / "token").write_text("the next one")  # as the kubelet does
    assert pod.poll() == []


def test_a_certificate_of_another_is_refused(server: MetadataServer, tmp_path: Path) -> None:
    source = PodSource(ApiServer(server.tls_url, lambda: ACCOUNT_TOKEN), NAMESPACE, POD)
    with pytest.raises(SourceError, match="SSLCertVerificationError"):
        source.poll()
    assert server.asked() == []  # the token was not sent
