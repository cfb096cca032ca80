"""Which cloud this process runs in, and who announces its end there."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dray.notices import gcp
from dray.notices.asking import LINK_LOCAL, ask, json_object
from dray.notices.aws import INSTANCE_ID, INTERRUPTION, LIFE_CYCLE, REBALANCE, AwsSource, Imds
from dray.notices.azure_events import COMPUTE, HEADERS, AzureSource
from dray.notices.gcp import GcpSource
from dray.notices.kube import ACCOUNT, sources_in_pod
from dray.notices.notice import Source, SourceError, plain

logger = logging.getLogger(__name__)

SECONDS = 1.5
"""The longest that detection takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where this process runs. ``cloud`` is ``aws``, ``gcp``, ``azure`` or None; ``name`` is the machine's.

    ``spot`` says whether the cloud may take the machine back, None where it does not tell.
    """

    cloud: str | None = None
    name: str | None = None
    spot: bool | None = None
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseUrls:
    """Where each cloud's metadata service is asked."""

    aws: str = LINK_LOCAL
    gcp: str = LINK_LOCAL
    azure: str = LINK_LOCAL

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> BaseUrls:
        """Each cloud's own, unless ``DRAY_METADATA_AWS``, ``_GCP`` or ``_AZURE`` names another: for tests."""
        return cls(
            **{
                cloud: environ.get(f"DRAY_METADATA_{cloud.upper()}", LINK_LOCAL)
                for cloud in ("aws", "gcp", "azure")
            }
        )


def detect_cloud(urls: BaseUrls, seconds: float = SECONDS) -> Host:
    """Ask all clouds at once; the first that answers as itself is the one. No sources where none answers."""
    probes: dict[Callable[[str], Host | None], str] = {_aws: urls.aws, _gcp: urls.gcp, _azure: urls.azure}
    return _first(probes, seconds) or Host()


def pod_sources(environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> tuple[Source, ...]:
    """The API server as a source, in a Kubernetes pod; none outside a pod."""
    try:
        return sources_in_pod(environ, account) or ()
    except (OSError, ValueError) as error:  # an account that cannot be read, a certificate that is none
        logger.warning("kubernetes notices: the service account cannot be used (%s)", type(error).__name__)
        return ()


def _first(probes: Mapping[Callable[[str], Host | None], str], seconds: float) -> Host | None:
    deadline = time.monotonic() + seconds
    answers: queue.SimpleQueue[Host | None] = queue.SimpleQueue()
    for probe, base_url in probes.items():
        # Not a pool of threads: that one would be waited for when the process ends.
        threading.Thread(target=_probe, args=(probe, base_url, answers), daemon=True).start()
    for _ in probes:
        try:
            host = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if host is not None:
            return host
    return None


def _probe(
    probe: Callable[[str], Host | None], base_url: str, answers: queue.SimpleQueue[Host | None]
) -> None:
    host = None
    try:
        host = probe(base_url)
    except Exception:  # noqa: BLE001, S110  whatever answers there, it is not this cloud
        pass
    finally:
        answers.put(host)


def _aws(base_url: str) -> Host | None:
    imds = Imds(base_url)
    cycle, name = imds.get(LIFE_CYCLE), imds.get(INSTANCE_ID)  # that there is a token proves that it is AWS
    spot = None if cycle is None else cycle.text == "spot"
    # An on-demand instance gets neither notice.
    sources = () if spot is False else tuple(AwsSource(path, imds) for path in (INTERRUPTION, REBALANCE))
    return Host(cloud="aws", name=None if name is None else plain(name.text), spot=spot, sources=sources)


def _gcp(base_url: str) -> Host | None:
    def value(key: str) -> str:
        return gcp.value_of(ask(base_url, gcp.ROOT + key, headers=gcp.HEADERS), key)

    name = value("name")
    sources = tuple(GcpSource(key, base_url) for key in (gcp.PREEMPTED, gcp.MAINTENANCE))
    try:
        spot = value("scheduling/preemptible") == "TRUE"  # also for machines of the newer kind, "spot"
    except SourceError:  # inside GKE the metadata server shows less
        return Host(cloud="gcp", name=name, sources=sources)
    return Host(cloud="gcp", name=name, spot=spot, sources=sources)


def _azure(base_url: str) -> Host | None:
    answer = ask(base_url, COMPUTE, headers=HEADERS)
    compute = json_object(answer.body) if answer.status == 200 else {}
    name = compute.get("name")
    if not isinstance(name, str) or not name or "azEnvironment" not in compute:
        return None
    spot = compute.get("priority") in ("Spot", "Low")
    return Host(cloud="azure", name=name, spot=spot, sources=(AzureSource(name, base_url),))
