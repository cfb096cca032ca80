"""Which machines are asked for: beside exhaustive search, over a recorded table of prices and scores."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import combinations_with_replacement
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.cluster.providers.ec2 import EC2Cluster
from dray.cluster.providers.ec2.answers import FleetResult, Refused
from dray.cluster.providers.ec2.buying import buy, buy_spot_first
from dray.cluster.providers.ec2.offers import Pool, next_offer
from dray.cluster.providers.ec2.prices import _interruptions as interruptions_of
from dray.cluster.providers.ec2.prices import _scores as scores_of
from dray.cluster.providers.ec2.provider import EC2Provider
from dray.cluster.providers.ec2.rates import token_rates
from dray.cluster.providers.protocol import Market
from dray.errors import ClusterError, ConfigError
from dray.planner.catalogue import load_catalogue
from tests.support.model_configs import LLAMA_70B

pytestmark = pytest.mark.unit


def total_dollars_per_million(pools: Sequence[Pool]) -> float:
    """Dollars per million tokens of a cluster with a machine of each of these."""
    return sum(one.cost for one in pools) / (sum(one.rate for one in pools) * 3600.0) * 1e6


# Spot prices in dollars per hour, as skypilot-org/skypilot-catalog recorded them at 00148f2 (catalogs/v8/aws/
# vms.csv, 2026). No region has six zones with these types: here are all zones of two, which a cluster could
# not span, so that prices differ more than they would for one. None: no such machines in that zone.
ZONES = ("use2-az1", "use2-az2", "use2-az3", "usw2-az1", "usw2-az2", "usw2-az3", "usw2-az4")
PRICES: dict[str, tuple[float | None, ...]] = {
    "g6.xlarge": (0.2756, 0.2599, 0.2612, 0.4250, 0.4537, 0.3900, 0.4541),
    "g5.xlarge": (0.3770, 0.3943, 0.3841, 0.4857, 0.5134, 0.4829, None),
    "g6e.xlarge": (0.5315, 0.5461, 0.5261, 0.9228, 0.7201, 0.6538, 1.5145),
    "g6e.12xlarge": (2.9165, 2.8567, 2.8739, 6.4585, 3.7322, 4.2304, 3.1053),
}
LISTED = {"g6.xlarge": 0.8048, "g5.xlarge": 1.006, "g6e.xlarge": 1.861, "g6e.12xlarge": 10.49264}
SCORES = (3, 9, 7, 1, 8, 5, 2)
"""Placement scores as AWS gives them, by zone: nobody publishes any, so these are made up."""


TODAY = date(2026, 11, 20)


def cluster(**changes: Any) -> EC2Cluster:
    return EC2Cluster(
        region="us-east-1",
        subnets=("subnet-00000001",),
        security_group="sg-00000001",
        instance_profile="p",
        image="ami-00000001",
        **changes,
    )


@pytest.fixture(scope="module")
def rates() -> dict[str, float]:
    return token_rates(cluster(instance_types=tuple(PRICES)), TODAY)


@pytest.fixture
def large(tmp_path: Path) -> str:
    """Llama 70B in bf16: 141 GB of weights."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    return str(tmp_path)


def test_types_are_compared_by_the_split_that_the_engine_will_have(large: str) -> None:
    """An engine takes no other than it is given: 8 GPUs with 80 GB each do not hold 141 GB on one of them."""
    alone = cluster(model=large)
    assert set(token_rates(alone, TODAY)) == {"p6-b200.48xlarge", "p6-b300.48xlarge"}
    split = token_rates(alone.for_engine({"tensor_parallel_size": 4}), TODAY)
    assert {"p5.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge"} <= set(split)
    devices = {load_catalogue().instances[one].devices for one in split}
    assert min(devices) >= 4
    in_file = token_rates(cluster(model=large, tensor_parallel_size=4), TODAY)
    assert in_file == split
    half = token_rates(alone.for_engine({"quantization": "fp8"}), TODAY)
    assert {"p5en.48xlarge", "p5.4xlarge"} <= set(half)  # 71 GB
    assert alone.for_engine({"max_num_seqs": 8, "quantization": None}) == alone


def test_a_replica_over_two_machines_gives_each_half_of_its_rate(large: str) -> None:
    split = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}
    two = cluster(model=large, instance_types=("p5.48xlarge",)).for_engine({**split, "nnodes": 2})
    one = cluster(model=large, instance_types=("p5.48xlarge",), tensor_parallel_size=8)
    assert token_rates(two, TODAY)["p5.48xlarge"] < token_rates(one, TODAY)["p5.48xlarge"]


def test_a_split_that_no_type_holds_is_named(large: str) -> None:
    small = cluster(model=large, instance_types=("g6e.12xlarge",))
    said = r"tensor_parallel_size=1, pipeline_parallel_size=1, nnodes=1, as the job's engine arguments or"
    with pytest.raises(ConfigError, match=said):
        token_rates(small, TODAY)
    with pytest.raises(ConfigError, match=r"engine argument tensor_parallel_size: 'x' is not a whole number"):
        small.for_engine({"tensor_parallel_size": "x"})


def test_a_model_of_the_hub_is_read_as_a_job_reads_it(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    @contextmanager
    def configuration_of(model: str) -> Iterator[Path]:
        asked.append(model)
        yield Path(large)

    monkeypatch.setattr("dray.cluster.providers.ec2.rates.configuration_of", configuration_of)
    assert token_rates(cluster(model="hf://ORG/NAME", tensor_parallel_size=8), TODAY)
    assert asked == ["hf://ORG/NAME"]


def test_types_are_compared_for_the_usual_model_where_the_family_is_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bamba"}')
    types = ("g6e.xlarge", "p5.4xlarge")
    with caplog.at_level("WARNING"):
        found = token_rates(cluster(model=str(tmp_path), instance_types=types), TODAY)
    assert found == token_rates(cluster(instance_types=types), TODAY)
    assert f"{tmp_path}: the cost model does not know its family ('bamba')" in caplog.text


def test_a_configuration_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: is not valid JSON"):
        token_rates(cluster(model=str(tmp_path)), TODAY)


class Prices:
    """AWS's answers on one type in one zone, which may fail."""

    def __init__(self) -> None:
        self.price = 0.5
        self.asked = 0
        self.fails: set[str] = set()

    def zones_of(self, subnets: Sequence[str]) -> dict[str, str]:
        self._answer("zones")
        return dict.fromkeys(subnets, "a")

    def offered(self, types: Sequence[str], zones: Iterable[str]) -> set[tuple[str, str]]:
        return {(kind, zone) for kind in types for zone in zones}

    def spot_prices(self, types: Sequence[str]) -> dict[tuple[str, str], tuple[float, datetime]]:
        self._answer("prices")
        self.asked += 1
        return {(kind, "a"): (self.price, datetime.now(UTC)) for kind in types}

    def _answer(self, what: str) -> None:
        if what in self.fails:
            raise ClusterError("AWS is away")


def test_prices_are_asked_for_again_and_kept_while_aws_is_away(caplog: pytest.LogCaptureFixture) -> None:
    aws: Any = Prices()
    one = EC2Provider(cluster(instance_types=("g6e.xlarge",), on_demand=False), lambda _: aws)

    def price(*, later: bool) -> float:
        one._offered -= 1801.0 if later else 0.0
        [pool] = one._all_offers().pools
        return pool.hourly

    assert price(later=False) == 0.5
    aws.price = 0.7
    assert (price(later=False), aws.asked) == (0.5, 1)
    assert price(later=True) == 0.7
    aws.price = 0.9
    aws.fails = {"zones"}
    assert price(later=True) == 0.7
    assert "its prices are those of an earlier time: AWS is away" in caplog.text
    aws.fails = {"prices"}
    assert price(later=True) == 0.7  # and not that of the catalogue
    aws.fails = set()
    assert (price(later=False), price(later=True)) == (0.7, 0.9)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_scores_are_asked_for_three_types_or_more(count: int) -> None:
    """AWS scores fewer types low whatever there is, and dray would read that as crowded."""

    class Low:
        def placement_scores(self, types: Sequence[str], machines: int) -> dict[str, int]:
            return dict.fromkeys(("us-east-1a",), 1)

    api: Any = Low()
    settings: Any = SimpleNamespace(workers=1)
    notes: list[str] = []
    found = scores_of(settings, sorted(PRICES)[:count], api, notes)
    assert found == ({"us-east-1a": 1} if count == 3 else {})
    assert len(notes) == (count < 3)


def table(rates: dict[str, float]) -> list[Pool]:
    """As dray makes it of what AWS says: each type in each zone, spot and on demand."""
    known = load_catalogue().instances
    pools = []
    for kind, prices in PRICES.items():
        for zone, price, score in zip(ZONES, prices, SCORES, strict=True):
            if price is None:
                continue
            place: dict[str, Any] = {
                "kind": kind,
                "zone": zone,
                "subnet": f"subnet-{zone}",
                "rate": rates[kind],
            }
            broken = interruptions_of(known[kind], score)
            pools.append(Pool(**place, market=Market.SPOT, hourly=price, interruptions=broken, score=score))
            pools.append(Pool(**place, market=Market.ON_DEMAND, hourly=LISTED[kind]))
    return pools


class Aws:
    """Gives what each pool has left, and the dearest of an offer first: the worst that it may do."""

    def __init__(self, there: Counter[Pool]) -> None:
        self.there = there
        self.calls = 0

    def __call__(self, pools: Sequence[Pool], machines: int) -> FleetResult:
        self.calls += 1
        given_: list[Pool] = []
        for pool in sorted(pools, key=lambda one: -one.cost):
            count = min(self.there[pool], machines - len(given_))
            self.there[pool] -= count
            given_ += [pool] * count
        short = [] if len(given_) == machines else [one for one in pools if not self.there[one]]
        return FleetResult(
            instances=tuple((f"i-{self.calls}-{n}", one.kind, one.subnet) for n, one in enumerate(given_)),
            refused=tuple(
                Refused(code="InsufficientInstanceCapacity", message="", kind=one.kind, subnet=one.subnet)
                for one in short
            ),
        )


def exhaustive(there: Counter[Pool], machines: int) -> float:
    """The cheapest tokens of all sets of so many machines that there are."""
    pools = [one for one in there if there[one]]
    sets: Iterator[tuple[Pool, ...]] = combinations_with_replacement(pools, machines)
    return min(
        total_dollars_per_million(one)
        for one in sets
        if all(count <= there[pool] for pool, count in Counter(one).items())
    )


def test_the_choice_is_within_5_percent_of_the_cheapest(rates: dict[str, float]) -> None:
    pools = table(rates)
    assert len({one.kind for one in pools}) >= 3
    assert len({one.zone for one in pools}) >= 6
    for machines in (1, 2, 3):
        bought = buy(pools, machines, (), Aws(Counter(dict.fromkeys(pools, machines))))
        best = exhaustive(Counter(dict.fromkeys(pools, machines)), machines)
        assert total_dollars_per_million(list(bought.machines.values())) <= 1.05 * best


@pytest.mark.parametrize("round_", range(40))
def test_with_shortages_it_is_within_5_percent_among_what_is_left(
    round_: int, rates: dict[str, float], request: pytest.FixtureRequest
) -> None:
    random = Random(request.config.option.seed * 100 + round_)
    pools = table(rates)
    there = Counter({one: random.choice((0, 0, 0, 1, 2)) for one in pools})
    machines = random.choice((1, 2, 3))
    if sum(there.values()) < machines:
        return
    best = exhaustive(there, machines)
    aws = Aws(there.copy())
    bought = buy(pools, machines, (), aws)
    assert len(bought.machines) == machines
    assert aws.calls <= len(pools)
    assert total_dollars_per_million(list(bought.machines.values())) <= 1.05 * best


amounts = st.floats(0.01, 100)
some_pools = st.lists(
    st.builds(
        Pool,
        kind=st.sampled_from(["g6.xlarge", "p5.48xlarge"]),
        zone=st.sampled_from(ZONES),
        subnet=st.sampled_from(["subnet-1", "subnet-2"]),
        market=st.sampled_from([Market.SPOT, Market.ON_DEMAND]),
        hourly=amounts,
        rate=st.floats(1, 1e5),
    ),
    unique=True,
    max_size=12,
)


@given(pools=some_pools, wanted=st.integers(1, 9), got=st.lists(amounts, max_size=3), draw=st.data())
def test_buying_ends_and_says_why_it_is_short(
    pools: list[Pool], wanted: int, got: list[float], draw: st.DataObject
) -> None:
    """Whatever AWS answers, and also where it names no pool."""
    calls = 0

    def ask(offer: Sequence[Pool], machines: int) -> FleetResult:
        nonlocal calls
        calls += 1
        assert len({one.market for one in offer}) == 1
        count = draw.draw(st.integers(0, machines))
        code = draw.draw(st.sampled_from(["InsufficientInstanceCapacity", "VcpuLimitExceeded", ""]))
        named = draw.draw(st.booleans())
        one = offer[0]
        where = {"kind": one.kind, "subnet": one.subnet} if named else {}
        refused = (Refused(code=code, message="no", **where),) if code else ()
        fresh = [(f"i-{calls}-{n}", one.kind, one.subnet) for n in range(count)]
        return FleetResult(instances=tuple(fresh), refused=refused)

    bought = buy(pools, wanted, [], ask)
    assert calls <= len(pools) + 1
    assert len(bought.machines) <= wanted
    assert bool(bought.reasons) == (len(bought.machines) < wanted and bool(pools))


def test_a_used_up_quota_takes_its_types_away_in_that_market_alone() -> None:
    place: dict[str, Any] = {"zone": "a", "subnet": "s", "rate": 1.0}
    cheap = Pool(kind="g6.xlarge", market=Market.SPOT, hourly=1, **place)
    same = Pool(kind="g5.xlarge", market=Market.SPOT, hourly=2, **place)
    other = Pool(kind="p5.48xlarge", market=Market.SPOT, hourly=3, **place)
    asked: list[str] = []

    def ask(offer: Sequence[Pool], machines: int) -> FleetResult:
        asked.extend(one.kind for one in offer)
        if offer[0].kind == "p5.48xlarge":
            return FleetResult(instances=(("i-1", "p5.48xlarge", "s"),), refused=())
        return FleetResult(instances=(), refused=(Refused(code="VcpuLimitExceeded", message=""),))

    assert list(buy([cheap, same, other], 1, (), ask).machines.values()) == [other]
    assert asked == ["g6.xlarge", "p5.48xlarge"]


@pytest.mark.parametrize(
    ("market", "quota", "kinds", "came"),
    [
        (Market.ON_DEMAND, {"p": 64}, {"p6-b200.48xlarge": 192, "p5.4xlarge": 16}, "p5.4xlarge"),
        (Market.SPOT, {"p2 to p4": 192}, {"p5.48xlarge": 192, "p4de.24xlarge": 96}, "p4de.24xlarge"),
        (Market.SPOT, {"g": 32}, {"g6e.12xlarge": 48, "g6.8xlarge": 32, "g5.4xlarge": 16}, "g6.8xlarge"),
    ],
)  # fmt: skip
def test_a_machine_too_large_for_a_quota_leaves_smaller_ones_and_other_quotas(
    market: Market, quota: dict[str, int], kinds: dict[str, int], came: str
) -> None:
    """The dearest last: what is asked for first is too large, or of another quota."""
    place: dict[str, Any] = {"zone": "a", "subnet": "s", "rate": 1.0, "market": market}
    pools = [Pool(kind=kind, vcpus=size, hourly=n, **place) for n, (kind, size) in enumerate(kinds.items())]

    def ask(offer: Sequence[Pool], machines: int) -> FleetResult:
        fits = [one for one in offer if one.vcpus <= quota.get(one.quota[1], 0)]
        if fits:
            return FleetResult(instances=(("i-1", fits[0].kind, "s"),), refused=())
        refused = [Refused(code="VcpuLimitExceeded", message="", kind=one.kind, subnet="s") for one in offer]
        return FleetResult(instances=(), refused=tuple(refused))

    assert [one.kind for one in buy(pools, 1, (), ask).machines.values()] == [came]


def test_with_a_large_cluster_a_slow_dear_machine_may_be_the_better_one() -> None:
    got = [Pool(kind="a", zone="z", subnet="s", market=Market.SPOT, hourly=1, rate=1)]
    fast = Pool(kind="b", zone="z", subnet="s", market=Market.SPOT, hourly=20, rate=10)
    slow = Pool(kind="c", zone="z", subnet="s", market=Market.SPOT, hourly=2.1, rate=1)
    assert next_offer([fast, slow], 1, got)[0] is slow
    assert next_offer([fast, slow], 1)[0] is fast


SPOT = Pool(kind="g6.xlarge", zone="z1", subnet="s1", market=Market.SPOT, hourly=0.3, rate=100.0)
DEAR = Pool(kind="g6.xlarge", zone="z1", subnet="s1", market=Market.ON_DEMAND, hourly=0.8, rate=100.0)


@pytest.mark.parametrize(
    ("on_demand", "spot_there", "spot", "dear"),
    [(0, 4, 4, 0), (0, 1, 1, 0), (2, 1, 1, 2), (3, 1, 1, 3), (4, 0, 0, 4)],
)
def test_machines_wait_for_spot_beyond_those_that_may_be_on_demand(
    on_demand: int, spot_there: int, spot: int, dear: int
) -> None:
    aws = Aws(Counter({SPOT: spot_there, DEAR: 10}))
    bought = buy_spot_first([SPOT, DEAR], 4, (), aws, on_demand)
    assert list(bought.machines.values()).count(SPOT) == spot
    assert list(bought.machines.values()).count(DEAR) == dear
    waiting = 4 - spot - dear
    told = f"{waiting} wait for spot: no more may be on demand yet"
    assert (told in bought.reasons) is bool(waiting)
    assert bool(bought.reasons) is bool(waiting)


def test_what_is_cheaper_on_demand_waits_for_no_spot() -> None:
    aws = Aws(Counter({SPOT: 0, DEAR: 10}))
    dear_spot = replace(SPOT, hourly=0.9)
    bought = buy_spot_first([dear_spot, DEAR], 2, (), aws, 0)
    assert [one.market for one in bought.machines.values()] == [Market.ON_DEMAND] * 2


def test_what_is_on_demand_may_lack_as_well() -> None:
    aws = Aws(Counter({SPOT: 1, DEAR: 1}))
    bought = buy_spot_first([SPOT, DEAR], 4, (), aws, 2)
    assert len(bought.machines) == 2
    assert any("on-demand" in reason for reason in bought.reasons)
    assert any(reason.startswith("1 wait for spot") for reason in bought.reasons)
