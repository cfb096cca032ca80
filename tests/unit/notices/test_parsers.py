"""What each service's documents mean; and that none of them can break a reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.notices import Notice, NoticeKind, SourceError
from dray.notices.asking import Answer, json_object
from dray.notices.aws import interruption, rebalance
from dray.notices.azure_events import KINDS, scheduled
from dray.notices.gcp import MAINTENANCE, PREEMPTED, noticed, value_of
from dray.notices.kube import TAINTS, deletion, marks
from dray.notices.notice import plain

pytestmark = pytest.mark.unit

NOW = 1_795_000_000.0


def said(body: Any, **headers: str) -> Answer:
    return Answer(
        status=200, headers=headers, body=body if isinstance(body, bytes) else json.dumps(body).encode()
    )


# -- documented bodies ----------------------------------------------------------------------


def test_aws_example() -> None:
    notice = interruption(said(b'{"action": "stop", "time": "2026-11-21T08:22:00Z"}'), NOW)
    assert notice == Notice(
        source="aws",
        kind=NoticeKind.INTERRUPTION,
        action="stop",
        deadline=1_795_249_320.0,
        seen_at=NOW,
        id="aws/stop@2026-11-21T08:22:00Z",
    )


@pytest.mark.parametrize("body", [{"action": "terminate"}, {"action": "terminate", "time": "tomorrow at 8"}])
def test_an_unreadable_time_does_not_hide_the_interruption(body: dict[str, str]) -> None:
    notice = interruption(said(body), NOW)
    assert notice is not None
    assert (notice.action, notice.deadline) == ("terminate", None)


def test_another_time_is_another_notice() -> None:
    one = interruption(said({"action": "stop", "time": "2026-11-21T08:22:00Z"}), NOW)
    two = interruption(said({"action": "stop", "time": "2026-11-21T09:22:00Z"}), NOW)
    assert one is not None
    assert two is not None
    assert one.id != two.id


@pytest.mark.parametrize("value", ["FALSE", "NONE", "", "false", "unknown", "<html>"])
def test_gcp_values_that_say_nothing(value: str) -> None:
    assert noticed(PREEMPTED, value, NOW) == []
    assert noticed(MAINTENANCE, value, NOW) == []


@pytest.mark.parametrize(
    "value", ["TERMINATE_ON_HOST_MAINTENANCE", "MIGRATE_ON_HOST_MAINTENANCE", "SHUTDOWN_ON_HOST_MAINTENANCE"]
)
def test_gcp_maintenance_values(value: str) -> None:
    (notice,) = noticed(MAINTENANCE, value, NOW)
    assert (notice.action, notice.deadline) == (value, None)
    (notice,) = noticed(MAINTENANCE, value, NOW, ahead=3600.0)
    assert notice.deadline == NOW + 3600.0


def test_an_answer_without_googles_header_is_not_googles() -> None:
    with pytest.raises(SourceError):
        value_of(said(b"TRUE"), PREEMPTED)


def event(**changes: Any) -> dict[str, Any]:
    """The example of Azure's documentation."""
    return {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EventStatus": "Scheduled",
        "EventType": "Freeze",
        "ResourceType": "VirtualMachine",
        "Resources": ["WestNO_0", "WestNO_1"],
        "NotBefore": "Mon, 11 Apr 2026 22:26:58 GMT",
        "Description": "Virtual machine is being paused because of a memory-preserving operation.",
        "EventSource": "Platform",
        "DurationInSeconds": 5,
    } | changes


@pytest.mark.parametrize("type_", KINDS)
def test_azure_example(type_: str) -> None:
    (notice,) = scheduled(said({"DocumentIncarnation": 2, "Events": [event(EventType=type_)]}), "westno_1", 5)
    assert (notice.action, notice.kind, notice.deadline) == (type_, KINDS[type_], 1_775_946_418.0)
    assert notice.ends_node is (type_ != "Freeze")
    assert notice.id == "azure/C7061BAC-AFDC-4513-B24B-AA5F13A16123"
    assert "memory-preserving" not in repr(notice)


@pytest.mark.parametrize(
    "changes", [{"Resources": ["WestNO_10"]}, {"EventType": "Restore"}, {"Resources": None}, {"EventType": 1}]
)
def test_azure_events_of_others(changes: dict[str, Any]) -> None:
    assert scheduled(said({"Events": [event(**changes)]}), "WestNO_1", NOW) == []


def test_every_taint_is_told_with_its_kind() -> None:
    taints = [{"key": key, "effect": "NoSchedule"} for key in (*TAINTS, "nvidia.com/gpu")]
    found = marks(said({"spec": {"taints": taints}, "metadata": {"name": "n"}}))
    assert found == dict.fromkeys(TAINTS, "unknown")


def test_a_taint_keeps_the_time_it_was_put_there() -> None:
    taint = {"key": "karpenter.sh/disrupted", "effect": "NoExecute", "timeAdded": "2026-11-21T08:22:00Z"}
    assert marks(said({"spec": {"taints": [taint]}})) == {"karpenter.sh/disrupted": "2026-11-21T08:22:00Z"}


def test_a_pod_whose_timestamp_is_unreadable_is_deleted_all_the_same() -> None:
    (notice,) = deletion(said({"metadata": {"deletionTimestamp": "x", "uid": "u"}}), NOW)
    assert (notice.kind, notice.deadline, notice.id) == (NoticeKind.TERM, None, "kubernetes/pod/u")


# -- junk -----------------------------------------------------------------------------------

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20))
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)
KEYS = st.sampled_from(
    [
        "action", "time", "noticeTime", "Events", "EventId", "EventType", "Resources", "EventStatus",
        "NotBefore", "DocumentIncarnation", "metadata", "spec", "taints", "key", "timeAdded",
        "deletionTimestamp", "uid",
    ]
)  # fmt: skip
VALUES = st.one_of(
    SCALARS, st.sampled_from(["Preempt", "Started", "vm", "karpenter.sh/disrupted", "2026-11-21T08:22:00Z"])
)
NEARLY = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=30,
)
EVENTS = st.fixed_dictionaries(
    {"EventId": VALUES, "EventType": st.sampled_from(sorted(KINDS)) | VALUES, "Resources": st.just(["vm"])},
    optional={"EventStatus": VALUES, "NotBefore": VALUES},
)
NOTICES = st.fixed_dictionaries(  # of NEARLY, hardly one is a notice
    {"Events": st.lists(EVENTS, max_size=2), "metadata": st.dictionaries(KEYS, VALUES)},
    optional={"action": VALUES, "time": VALUES, "noticeTime": VALUES},
) | st.fixed_dictionaries({"metadata": st.fixed_dictionaries({"deletionTimestamp": VALUES, "uid": VALUES})})
BODIES = st.one_of(
    NOTICES.map(lambda found: json.dumps(found).encode()),
    st.binary(max_size=200),
    st.text(max_size=200).map(str.encode),
    JSON.map(lambda found: json.dumps(found).encode()),
    NEARLY.map(lambda found: json.dumps(found).encode()),
    st.just(b"[" * 100_000),
    st.just(b"\xff\xfe{\x00}"),
)
NO_DATE: dict[str, str] = {}
DATES = st.one_of(st.just(NO_DATE), st.text(max_size=40).map(lambda text: {"date": text}))


@given(BODIES, DATES, st.floats(0, 4e9))
def test_junk_never_raises(body: bytes, headers: dict[str, str], now: float) -> None:
    answer = Answer(status=200, headers=headers, body=body)
    found = [interruption(answer, now), rebalance(answer, now)]
    found += scheduled(answer, "vm", now) + deletion(answer, now)
    found += noticed(PREEMPTED, plain(answer.text), now) + noticed(MAINTENANCE, plain(answer.text), now)
    marks(answer)
    json_object(body)
    for notice in found:
        if notice is not None:
            assert notice.seen_at == now
            assert len(notice.action) <= 128
            assert len(notice.id) <= 300
            assert notice.action.isascii()
            assert notice.id.isprintable()
            assert notice.seconds_left(now) is None or notice.seconds_left(now) >= 0  # type: ignore[operator]


WORDS = st.sampled_from([b"TRUE", b"FALSE", b"NONE", b"MIGRATE_ON_HOST_MAINTENANCE"])
STATUSES = st.just(200) | st.integers(100, 599)  # of the latter, hardly one is 200


@given(WORDS | BODIES.map(bytes), st.sampled_from([PREEMPTED, MAINTENANCE]), STATUSES)
def test_a_value_is_read_or_refused(body: bytes, key: str, status: int) -> None:
    answer = Answer(status=status, headers={"metadata-flavor": "Google"}, body=body)
    try:
        value = value_of(answer, key)
    except SourceError as error:
        assert status != 200
        assert str(error) == f"GET /computeMetadata/v1/instance/{key}: status {status}"  # not the body
    else:
        assert status == 200
        assert value in (answer.text, "unknown")
        assert value.isascii()
        assert value.isprintable()
        assert len(value) <= 128


@given(st.text() | st.none() | st.integers() | st.binary())
def test_a_word_is_plain(text: object) -> None:
    assert plain(text).isprintable()
    assert len(plain(text)) <= 128
