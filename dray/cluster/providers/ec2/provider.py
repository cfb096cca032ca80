"""A cluster of EC2 instances: created, watched and released by its tags."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from dray.cluster.head_jobs import driver_command, submit_there
from dray.cluster.listening import listens
from dray.cluster.providers.ec2.answers import FleetResult
from dray.cluster.providers.ec2.api import Ec2Api
from dray.cluster.providers.ec2.buying import Bought, buy, buy_spot_first
from dray.cluster.providers.ec2.commands import run_there
from dray.cluster.providers.ec2.consoles import said_on
from dray.cluster.providers.ec2.machines import coming, listed
from dray.cluster.providers.ec2.offers import Pool
from dray.cluster.providers.ec2.planning import planned
from dray.cluster.providers.ec2.prices import Offers, offers_of
from dray.cluster.providers.ec2.rates import token_rates
from dray.cluster.providers.ec2.releasing import release_cluster, sweep
from dray.cluster.providers.ec2.requests import (
    EXPIRES_TAG,
    fleet_request,
    parameter_of,
    places,
    tags_of,
    template_request,
    user_data,
)
from dray.cluster.providers.ec2.settings import EC2Settings
from dray.cluster.providers.made import MadeCluster
from dray.cluster.providers.protocol import (
    Access,
    Expired,
    Grant,
    Machine,
    Market,
    Phase,
    Planned,
    ends_of,
)
from dray.errors import ClusterError, ConfigError, DrayError

_LOGGER = logging.getLogger("dray.cluster")
_LOOK_SECONDS = 1.0
_ASK_EVERY = 5.0  # seconds between two looks at the head's instance
_OFFERS_SECONDS = 1800.0  # for which prices and placement scores are taken as they were
_BUSY_SECONDS = 5.0  # before EC2 is asked again that took no more calls
_LISTED_SECONDS = 60.0
"""EC2 lists an instance, and knows a launch template, some seconds after it said that it made them."""


class EC2Provider(MadeCluster[EC2Settings, Ec2Api]):
    """The cluster of these settings, whose name its tags have. ``make_api`` is for tests.

    One lock is held by whatever creates, and by the release: that waits for the call under way, and what is
    to be created after it is refused.
    """

    def __init__(
        self,
        settings: EC2Settings,
        make_api: Callable[[EC2Settings], Ec2Api] = Ec2Api.of,
        *,
        of_job: bool = False,
    ) -> None:
        super().__init__(settings, make_api, of_job=of_job)
        self._offers: Offers | None = None
        self._offered = 0.0  # when AWS was last asked
        self._rates: dict[str, float] = {}
        self._pools: dict[str, Pool] = {}  # of the workers that came, by their instance
        self._ids: dict[str, float] = {}  # all that this process was given, and when: EC2 lists them late
        self._templates: dict[tuple[str, Market], str] = {}
        self._calls = 0
        self._salt = secrets.token_hex(4)
        self.where = f"the EC2 cluster {settings.name} in {settings.region}"

    @property
    def largest(self) -> float | None:
        """The most GPUs of one machine, among the types that may be bought."""
        return max(one.gpus for one in self._all_offers().pools)

    def plan(self) -> tuple[Planned, ...]:
        """Templates and fleets, in the order in which they would be asked for; the first try of each."""
        return planned(self._settings, self._all_offers())

    def start(self) -> None:
        """The token, the head, then the workers that can be had."""
        self._refuse_ending()
        there = self._head() is not None
        self._all_offers()  # what is wrong with the settings shows before anything is paid for
        try:
            if not there:
                self._made = True
                self.drain([one.name for one in self._workers()])  # of a head that is gone: lost to a new one
                self._put_token()
                self._buy_head()
                self._await_head()
            else:
                self._put_off()
            grant = self.desire(self._settings.workers)
            if len(grant.machines) < self._settings.minimum:
                had = f"{len(grant.machines)} of at least {self._settings.minimum} workers can be had"
                raise ClusterError(f"{self.where}: {had}: {'; '.join(grant.reasons)}")
        except BaseException as error:
            if not there:  # one that ran before goes on
                self._undo(error)
            raise

    def _undo(self, error: BaseException) -> None:
        """Release what a start has made before ``error``, which is raised with what is left, if anything."""
        try:
            self.release()
        except DrayError as left:
            if isinstance(error, ConfigError | ClusterError):
                raise type(error)(f"{error}. {left}") from error
            _LOGGER.warning("%s", left)

    def access(self, look: Callable[[], None] = lambda: None) -> Access:
        """Wait until the head takes connections from here."""
        until = time.monotonic() + self._settings.start_seconds
        while True:
            head = self._head()
            if head is None:
                raise ClusterError(f"{self.where}: its head is gone; start it again")
            self._heed(head)
            ask = time.monotonic() + _ASK_EVERY
            while time.monotonic() < ask:
                look()
                self._refuse_ending()
                if listens(f"{head.address}:{self._settings.port}"):
                    return self._access_by(head)
                if time.monotonic() > until:
                    raise ClusterError(self._unreachable(head))
                time.sleep(_LOOK_SECONDS)

    def nodes(self) -> tuple[Machine, ...]:
        """All instances of the cluster, also those that EC2 does not list yet, the head first."""
        found = [listed(one, self._pools.get(one.id)) for one in self._api.instances(self._settings.name)]
        there = {one.name for one in found}
        late = {name for name in self._pools if name not in there and self._is_fresh(name)}
        late -= self._api.ended(late).keys()
        found += [coming(name, self._pools[name], self._expires()) for name in late]
        return tuple(sorted(found, key=lambda one: (not one.head, one.name)))

    def asked(self) -> list[float | None]:
        """One for each worker that a job's own cluster is to have, with the GPUs of the smallest type.

        AWS may have had fewer at the start: the driver goes on to ask for them. Nothing buys for a cluster
        that `dray cluster up` made.
        """
        wanted = self._settings.workers if self._of_job else 0
        return [min(one.gpus for one in self._all_offers().pools)] * wanted

    def ended(self) -> dict[str, str]:
        """The machines that this process bought and EC2 has ended since, with EC2's reason."""
        return self._api.ended(list(self._ids))

    def desire(self, workers: int, on_demand: int | None = None) -> Grant:
        """Buy what is missing, or end what is too much: those of the dearest tokens first."""
        with self._creating:
            self._refuse_ending()
            have = self._workers()
            bought = Bought(machines={}, reasons=())
            if len(have) < workers:
                bought = self._buy_workers(workers - len(have), have, on_demand)
            elif len(have) > workers:
                dearest = sorted(have, key=self._dollars, reverse=True)
                self.drain([one.name for one in dearest[: len(have) - workers]])
                have = dearest[len(have) - workers :]
            fresh = tuple(coming(name, pool, self._expires()) for name, pool in bought.machines.items())
            return Grant(wanted=workers, machines=(*have, *fresh), reasons=bought.reasons)

    def drain(self, names: Collection[str]) -> None:
        """End these instances."""
        self._api.terminate(names)
        for name in names:
            self._pools.pop(name, None)

    def _let_go(self) -> None:
        """Release the cluster, which takes a second or two."""
        self.release()

    def release(self) -> tuple[str, ...]:
        """End all instances, and delete templates and token."""
        self._ending.set()
        with self._creating:
            if self._of_job and not self._made:
                return ()
            late = {one: at + _LISTED_SECONDS for one, at in self._ids.items() if self._is_fresh(one)}
            released = release_cluster(self._api, self._settings.name, self._ids, late)
            self._made = False
            self._ids.clear()
            return released

    def sweep(self) -> tuple[Expired, ...]:
        """Release what has expired in this region."""
        return sweep(self._api, time.time())

    def submit(self, arguments: Sequence[str]) -> str:
        """Have the head run ``dray`` with these arguments, through Systems Manager; the submission's id.

        A head that still boots is waited for.

        Raises:
            ConfigError: the arguments run no job.
            ClusterError: there is no head, its agent takes no command, or its Ray takes no job.
        """
        command = driver_command(arguments, self._settings.python)
        head = self._head()
        if head is None:
            raise ClusterError(f"{self.where}: it has no head; start it with `dray cluster up`")
        seconds = self._settings.start_seconds
        name, line = submit_there(command, self._settings.python, seconds)
        script = f"export HOME=${{HOME:-/root}}; {line}"
        try:
            run_there(self._api, head.name, script, seconds, lambda: self._heed(head))
        except ClusterError as error:
            raise ClusterError(f"{self.where}: job {name} was not submitted to its head {error}") from error
        return name

    def _all_offers(self) -> Offers:
        """All offers, at most half an hour old; older ones where AWS does not answer."""
        now, today = time.monotonic(), datetime.now(UTC).date()
        if self._offers is None:
            self._rates = token_rates(self._settings, today)
            self._offers = offers_of(self._settings, self._rates, self._api, today)
            self._offered = now
        elif now - self._offered > _OFFERS_SECONDS:
            self._offered = now  # also where AWS does not answer: the next try is in half an hour
            try:
                self._offers = offers_of(self._settings, self._rates, self._api, today, self._offers)
            except DrayError as error:
                _LOGGER.warning("%s: its prices are those of an earlier time: %s", self.where, error)
        return self._offers

    def _put_off(self) -> None:
        ids = [one.id for one in self._api.instances(self._settings.name)]
        self._api.tag(ids, {EXPIRES_TAG: str(int(self._expires()))})
        self._kept = time.monotonic()

    def _put_token(self) -> None:
        with self._creating:
            self._refuse_ending()
            name, tags = self._settings.name, tags_of(self._settings.name, "token", self._expires())
            self._api.put_secret(parameter_of(name), secrets.token_hex(32), tags)

    def _buy_head(self) -> None:
        """Buy the head, on demand, of one type, in whichever zone has it.

        Raises:
            ClusterError: none has it.
        """
        kind = self._settings.head_type
        zones = self._api.zones_of(self._settings.subnets)
        pools = [
            Pool(kind=kind, zone=zone, subnet=subnet, market=Market.ON_DEMAND, hourly=0.0, rate=1.0)
            for subnet, zone in zones.items()
        ]
        with self._creating:
            self._refuse_ending()
            bought = buy(pools, 1, (), self._asking("head", ""))
        if not bought.machines:
            raise ClusterError(f"{self.where}: no head can be had: {'; '.join(bought.reasons)}")

    def _await_head(self) -> None:
        """Wait until EC2 lists the head, with the address that workers join.

        Raises:
            ClusterError: it does not, or the head has ended already.
        """
        until = time.monotonic() + _LISTED_SECONDS
        while True:
            head = self._head()
            if head is not None and head.address:
                return
            self._refuse_ending()
            if time.monotonic() > until:
                ends = ends_of(self)
                named = ", ".join(ends.get(one, one) for one in self._ids)
                raise ClusterError(
                    f"{self.where}: its head {named} ended, or got no address, within "
                    f"{_LISTED_SECONDS:.0f} s; the console of EC2 says why"
                )
            time.sleep(_LOOK_SECONDS)

    def _workers(self) -> list[Machine]:
        """The workers that are there or coming."""
        return [one for one in self.nodes() if not one.head and one.phase is not Phase.LEAVING]

    def _is_fresh(self, instance: str) -> bool:
        return time.monotonic() < self._ids.get(instance, float("-inf")) + _LISTED_SECONDS

    def _buy_workers(self, count: int, have: Sequence[Machine], on_demand: int | None) -> Bought:
        head = self._head()
        if head is None:
            raise ClusterError(f"{self.where}: it has no head; start it first")
        got = [self._pools[one.name] for one in have if one.name in self._pools]
        dear = sum(one.market is Market.ON_DEMAND for one in have)
        most = None if on_demand is None else max(on_demand - dear, 0)
        pools, ask = self._all_offers().pools, self._asking("worker", head.address)
        bought = buy(pools, count, got, ask) if most is None else buy_spot_first(pools, count, got, ask, most)
        self._pools |= bought.machines
        return bought

    def _asking(self, role: str, head: str) -> Callable[[Sequence[Pool], int], FleetResult]:
        def ask(pools: Sequence[Pool], machines: int) -> FleetResult:
            self._refuse_ending()
            market = pools[0].market
            template = self._template(role, market, head)
            until = time.monotonic() + _LISTED_SECONDS
            while True:
                terms = self._terms()
                request = fleet_request(
                    self._settings, role, template, places(pools), machines, market, terms
                )
                try:
                    result = self._api.create_fleet(request)
                except ConfigError as error:
                    if "InvalidLaunchTemplate" not in str(error) or time.monotonic() > until:
                        raise
                    time.sleep(_LOOK_SECONDS)  # it was made a moment ago
                    self._refuse_ending()
                else:
                    self._ids |= dict.fromkeys((one for one, _, _ in result.instances), time.monotonic())
                    if not result.busy or time.monotonic() > until:
                        return result
                    time.sleep(_BUSY_SECONDS)
                    self._refuse_ending()

        return ask

    def _terms(self) -> dict[str, Any]:
        self._calls += 1
        token = f"{self._settings.name[:40]}-{self._salt}-{self._calls}"
        return {"client_token": token, "expires": self._expires()}

    def _template(self, role: str, market: Market, head: str) -> str:
        if (role, market) not in self._templates:
            script = user_data(self._settings, role, market, head)
            request = template_request(self._settings, role, market, script, self._expires())
            self._templates[role, market] = self._api.create_template(request)
        return self._templates[role, market]

    def _head(self) -> Machine | None:
        return next((one for one in self.nodes() if one.head and one.phase is not Phase.LEAVING), None)

    def _access_by(self, head: Machine) -> Access:
        token = self._api.secret(parameter_of(self._settings.name))
        if token is None:
            raise ClusterError(f"{self.where}: its token is gone; end it and start it again")
        return Access(
            address=f"{head.address}:{self._settings.port}",
            auth_token=token,
            minimum=self._settings.minimum,
            patience=self._settings.join_seconds,
        )

    def _dollars(self, machine: Machine) -> float:
        """Dollars of a million tokens; a machine that another process bought counts as the dearest."""
        pool = self._pools.get(machine.name)
        return pool.dollars_per_million if pool is not None else float("inf")

    def _heed(self, head: Machine) -> None:
        """End the wait where the head has said that it cannot."""
        said = said_on(self._api, head.name)
        if said is not None and " is up at " not in said:
            raise ClusterError(f"{self.where}: its head {head.name} cannot start: {said}")

    def _unreachable(self, head: Machine) -> str:
        said = said_on(self._api, head.name)
        return (
            f"{self.where}: its head {head.name} at {head.address}:{self._settings.port} took no connection "
            f"from here in {self._settings.start_seconds:.0f} s; its console says: {said or 'nothing'}. "
            "Where the head is up, this machine does not reach its network: run the job on the head "
            "(docs/clusters.md, Where the driver runs)"
        )
