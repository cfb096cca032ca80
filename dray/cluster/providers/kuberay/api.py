"""The API server of Kubernetes: the few calls that a cluster needs, with errors that say what to do.

Credentials, certificates and connections are those of the official client; objects are plain JSON here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from dray.cluster.head_jobs import JOBS_PORT
from dray.cluster.providers.kuberay.errors import refused, unconfigured, unreachable
from dray.cluster.providers.kuberay.objects import GROUP, MANAGED_BY, PLURAL, VERSION, unchanged
from dray.cluster.providers.kuberay.settings import KubeRaySettings
from dray.errors import first_line
from dray.notices.instants import ahead, instant

SECONDS = 10.0
"""For one answer."""
PATIENCE = 30.0
"""Seconds for which a call is repeated that the server is too busy for, or that does not reach it."""

_BUSY = frozenset({429, 500, 502, 503, 504})
_PAUSE = 0.5
_MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server said; ``body`` is its JSON, or its text. Names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def retry_after(self) -> float:
        """Seconds that the server asks to wait, at most as long as a call may take."""
        value = self.headers.get("retry-after", "")
        return min(float(value), SECONDS) if value.isdecimal() else 0.0

    @property
    def ahead(self) -> float:
        """Seconds by which the server's clock is ahead of this one."""
        return ahead(instant(self.headers.get("date")), time.time())


Send = Callable[[str, str, Any, Mapping[str, str]], Answer]
"""One request: method, path, body, more headers. OSError where no answer comes."""


class KubeApi:
    """One namespace, whose server is called ``where`` in errors.

    ``renew`` gives a ``send`` with the credentials that are there by then. ``ahead`` are the seconds by which
    the server's clock was ahead of this one at its last answer.
    """

    def __init__(
        self,
        namespace: str,
        send: Send,
        where: str,
        *,
        patience: float = PATIENCE,
        renew: Callable[[], Send] | None = None,
    ) -> None:
        self._send = send
        self._renew = renew
        self.ahead = 0.0
        self._namespace = quote(namespace, safe="")
        self._clusters = f"/apis/{GROUP}/{VERSION}/namespaces/{self._namespace}/{PLURAL}"
        self._core = f"/api/v1/namespaces/{self._namespace}"
        self._patience = patience
        self.where = where

    @classmethod
    def of(cls, settings: KubeRaySettings) -> KubeApi:
        """A client with the credentials that the settings name.

        Raises:
            ConfigError: the client library is missing, or there are no credentials.
        """
        send, host = _client(settings)
        where = f"the Kubernetes API at {host}"
        return cls(settings.namespace, send, where, renew=lambda: _client(settings)[0])

    # -- RayClusters ------------------------------------------------------------------------------

    def create(self, cluster: Mapping[str, Any]) -> bool:
        """Whether it was made now; false where one of this name is there."""
        answer = self._call("POST", f"{self._clusters}?fieldValidation=Strict", cluster, known={409})
        return answer.status != 409

    def cluster(self, name: str) -> dict[str, Any] | None:
        """A RayCluster; None where there is none."""
        answer = self._call("GET", self._path(name), known={404})
        return None if answer.status == 404 else dict(answer.body)

    def clusters(self) -> list[dict[str, Any]]:
        """The clusters that dray made.

        Raises:
            ConfigError: the cluster does not know such objects: KubeRay is not there.
        """
        query = urlencode({"labelSelector": f"{MANAGED_BY}=dray"})
        return list(self._call("GET", f"{self._clusters}?{query}").body["items"])

    def patch(self, name: str, change: Mapping[str, Any]) -> bool:
        """Merge a change into a RayCluster. False where that is gone, or was changed since it was read.

        A change that names ``metadata.resourceVersion`` is refused by the server if it was changed.
        """
        answer = self._call("PATCH", self._path(name), change, {"Content-Type": _MERGE}, {404, 409})
        return answer.status not in (404, 409)

    def delete(self, name: str, seen: Mapping[str, Any] | None = None) -> bool:
        """Delete a RayCluster, and all that KubeRay made of it; false where it is gone.

        ``seen``: only if it is still as it was seen, for a driver may have put its expiry off since.
        """
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if seen is not None:
            options["preconditions"] = unchanged(seen)
        answer = self._call("DELETE", self._path(name), options, known={404, 409})
        return answer.status not in (404, 409)

    def _path(self, name: str) -> str:
        return f"{self._clusters}/{quote(name, safe='')}"

    # -- what KubeRay makes -----------------------------------------------------------------------

    def pods(self, cluster: str) -> list[dict[str, Any]]:
        """The pods of a RayCluster."""
        query = urlencode({"labelSelector": f"ray.io/cluster={cluster}"})
        return list(self._call("GET", f"{self._core}/pods?{query}").body["items"])

    def secret(self, name: str) -> dict[str, str] | None:
        """The data of a secret, in base64; None where there is none."""
        answer = self._call("GET", f"{self._core}/secrets/{quote(name, safe='')}", known={404})
        return None if answer.status == 404 else dict(answer.body.get("data") or {})

    def submit_job(
        self, service: str, body: Mapping[str, Any], headers: Mapping[str, str], *, there: str
    ) -> None:
        """Send a job to Ray's jobs API, a service of the cluster, through the API server.

        The answer to a first try may be lost. The service refuses the next one then, with ``there``.
        """
        target = f"{self._core}/services/{quote(service, safe='')}:{JOBS_PORT}/proxy/api/jobs/"
        self._call("POST", target, body, headers, there=there)

    # -- one call ---------------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        known: Collection[int] = (),
        there: str | None = None,
    ) -> Answer:
        """An answer of 2xx, of a ``known`` status, or whose text has ``there``; a busy server is asked again.

        So is one that does not take the credentials, once, with those of now: the client reads a file once.

        Raises:
            ConfigError, ClusterError: there is none.
        """
        until, pause = time.monotonic() + self._patience, _PAUSE
        renew = self._renew
        while True:
            try:
                answer = self._send(method, path, body, headers or {})
            except OSError as error:
                if time.monotonic() + pause > until:
                    raise unreachable(self.where, error) from error
            else:
                self.ahead = answer.ahead
                if answer.status in known or 200 <= answer.status < 300:
                    return answer
                if there is not None and isinstance(answer.body, str) and there in answer.body:
                    return answer
                if answer.status == 401 and renew is not None:
                    self._send, renew = renew(), None
                    continue
                pause = max(pause, answer.retry_after)
                if answer.status not in _BUSY or time.monotonic() + pause > until:
                    raise refused(self.where, method, path, answer.status, answer.body)
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def _client(settings: KubeRaySettings) -> tuple[Send, str]:
    """How requests are sent, and to which host."""
    try:
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException
    except ImportError as error:
        raise unconfigured(
            "its client library is missing: pip install kubernetes, or install dray with its extra "
            "kubernetes (README, Install)"
        ) from error
    from urllib3.exceptions import HTTPError

    loader: Any = config  # its functions have no types
    configuration: Any = client.Configuration()
    try:
        if settings.context is None and settings.kubeconfig is None and _in_pod():
            loader.load_incluster_config(client_configuration=configuration)
        else:
            loader.load_kube_config(
                settings.kubeconfig, settings.context, configuration, persist_config=False
            )
    except (ConfigException, OSError, ValueError) as error:
        raise unconfigured(first_line(error, otherwise=type(error).__name__)) from error
    rest: Any = client.ApiClient(configuration).rest_client
    _trust_authorities(rest.pool_manager.connection_pool_kw)

    def send(method: str, path: str, body: Any, more: Mapping[str, str]) -> Answer:
        headers = {"Accept": "application/json", "Content-Type": "application/json", **more}
        # This renews a token that an exec plugin gave. The second name is that of older versions.
        tokens = map(configuration.get_api_key_with_prefix, ("BearerToken", "authorization"))
        if token := next(filter(None, tokens), None):
            headers["Authorization"] = token
        try:
            # By the connections alone: what is above them differs between versions of the client.
            answer = rest.pool_manager.request(
                method,
                f"{configuration.host}{path}",
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=SECONDS,
                retries=False,
            )
        except HTTPError as error:
            raise ConnectionError(_cause(error)) from error
        names = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(status=answer.status, headers=names, body=_json(answer.data))

    return send, str(configuration.host)


def _trust_authorities(options: dict[str, Any]) -> None:
    """Have connections of these options of urllib3 make its usual checks, without the strict ones."""
    from urllib3.util.ssl_ import create_urllib3_context

    from dray.notices.kube import accept_authorities

    context = create_urllib3_context(cert_reqs=options["cert_reqs"])
    if not options.get("ca_certs") and not options.get("ca_cert_data"):
        context.load_default_certs()  # urllib3 does that for contexts of its own alone
    accept_authorities(context)
    options["ssl_context"] = context


def _cause(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return first_line(reason, 200, type(reason).__name__)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data or b"null")
    except ValueError:
        return data.decode(errors="replace")


def _in_pod() -> bool:
    from dray.notices.kube import ACCOUNT

    return (ACCOUNT / "token").is_file()
