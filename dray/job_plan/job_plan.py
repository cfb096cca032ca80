"""The plan of a job: its rows are read and counted, and every configuration is priced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

from dray.engine.chat_template import with_template_text
from dray.errors import ConfigError, InputError
from dray.job.options.plan_file import OVERRIDES, identity_of
from dray.job.options.resolving import Blocks, NoBlocks, inputs_of, model_place, objects_of
from dray.job_plan.arguments import limits_for, whole
from dray.job_plan.measured import efficiencies_in
from dray.job_plan.request import PlanRequest
from dray.kinds import KINDS, Kind, kind_named
from dray.machine import installed_version
from dray.planner.catalogue import Catalogue, HostedPrice, Instance, hosted_prices, known_catalogue
from dray.planner.cost import Demand, Phi, PhiFor, Plan, Plans, best_of_each, plans, prior
from dray.planner.cost.limits import allowed
from dray.planner.efficiencies import learned, learned_lengths, with_starts
from dray.planner.models import ModelFacts, read_model
from dray.planner.workload import (
    AtLeast,
    Counting,
    InputLines,
    Learned,
    Lengths,
    TokenizerAt,
    Workload,
    estimate,
)
from dray.requests.sources import RowDefaults, Source
from dray.requests.spool.spool import decode
from dray.requests.task_shape import LOOKED_AT, shape_of_rows
from dray.storage.objects import ObjectStoreOptions
from dray.store import Efficiency
from dray.weights.source.configuration import configuration_of

Say = Callable[[str], None]
_TOKENS = "max_num_batched_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What earlier runs and the user know better than the catalogue; everything may be left out.

    Args:
        phi: measured over predicted rate, by device and format of the weights.
        runs: what finished runs measured, in place of ``phi`` where there are any; those of the request's
            store where none are given.
        lengths: predicts outputs, from finished jobs.
        output_error: by which share its prediction may be off.
        catalogue: hardware, with calibrated machines.
    """

    phi: PhiFor = prior
    runs: Sequence[Efficiency] = ()
    lengths: Lengths | None = None
    output_error: float | None = None
    catalogue: Catalogue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What a job asks for, and the configurations that can run it, the cheapest first.

    ``identity`` tells an input or model that has changed since. ``notes`` say what makes figures unsure.
    ``names_tokens``: plans say how many tokens a step has.
    """

    model: ModelFacts
    workload: Workload
    demand: Demand
    found: Plans
    hosted: tuple[HostedPrice, ...]
    identity: Mapping[str, str]
    day: date
    notes: tuple[str, ...]
    names_tokens: bool

    @property
    def best(self) -> list[Plan]:
        """The best plan of each hardware, market and number of machines, the cheapest first."""
        return best_of_each(self.found.plans)

    @property
    def why(self) -> str:
        """One sentence: why the first plan is first, or why there is none."""
        return self.found.why

    def arguments_of(self, plan: Plan) -> dict[str, int]:
        """The engine arguments of a plan, as ``dray run`` takes them.

        Where a step has to hold a whole prompt, vLLM refuses fewer tokens than the longest one may have, and
        chooses enough itself where nothing names a number.
        """
        said = plan.setting.arguments
        return said if self.names_tokens else {k: v for k, v in said.items() if k != _TOKENS}

    def _as_json(self, plan: Plan) -> dict[str, Any]:
        share = {"gpu_memory_utilization": plan.setting.gpu_memory_utilization}
        return _plan(plan) | {"engine_arguments": self.arguments_of(plan) | share}

    def hosted_dollars(self) -> list[tuple[HostedPrice, float]]:
        """What hosted batch APIs charge for the same tokens, the cheapest first."""
        tokens = self.demand.rows * self.demand.input_tokens, self.demand.rows * self.demand.output_tokens
        return sorted(((one, one.dollars(*tokens)) for one in self.hosted), key=lambda pair: pair[1])

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON: what ``dray plan --json`` prints and ``dray run --plan`` reads."""
        return {
            "day": self.day.isoformat(),
            "model": {"name": self.model.name, "format": self.model.format},
            "workload": _plain(asdict(self.workload)),
            "plans": [self._as_json(one) for one in self.best],
            "why": self.why,
            "nearest": [self._as_json(one) for one in self.found.nearest],
            "hosted": [
                {"name": one.name, "dollars": cost, "date": one.date.isoformat(), "source": one.source}
                for one, cost in self.hosted_dollars()
            ],
            "refusals": sorted({one.reason for one in self.found.refusals}) if not self.found.plans else [],
            "notes": list(self.notes),
            "identity": dict(self.identity),
        }


def plan_job(
    request: PlanRequest,
    blocks: Blocks | None = None,
    *,
    known: Known | None = None,
    today: date | None = None,
    say: Say | None = None,
) -> JobPlan:
    """Read and count the rows of a job, and price every configuration that may run it.

    Args:
        blocks: what names such as ``block:NAME`` lead to.
        known: what earlier runs and the user know better than the catalogue.
        today: the day whose prices hold.
        say: hears how far this is.

    Raises:
        ConfigError: the model, or an option, cannot be used.
        InputError: the input is missing, or cannot be read.
        StoreError: the store of finished runs does not answer.
    """
    request, blocks, known = request.anchored(), blocks or NoBlocks(), known or Known()
    say, today = say or (lambda _: None), today or date.today()
    objects = objects_of(request.objects, blocks)
    place = model_place(request.model, blocks)
    known = replace(known, runs=known.runs or efficiencies_in(request.store, blocks, say))
    allowed(_catalogue(request, known), request.limits())  # before the input is read
    source = request.rows.source(inputs_of(request.input))
    defaults = RowDefaults(model_name=request.rows.model_name, sampling=request.sampling.fields())
    lines = InputLines(source, defaults, overrides=request.overrides, options=objects, say=say)
    kind = _kind(request, lines)
    with configuration_of(place.uri, place.objects or objects) as folder:
        config, model = (folder / "config.json").read_bytes(), _model(folder, request.arguments)
        known = _with_lengths(known, model, lines)
        say("counting rows and tokens")
        workload, notes = estimate(lines, _counting(request, folder, model, known))
    demand = _demand(request, workload, lines)
    say(f"{demand.rows:,} requests counted; pricing configurations")
    found = plans(
        demand,
        model,
        _catalogue(request, known),
        limits_for(request.limits(), request.arguments, model),
        today=today,
        phi=_doubted(_phi(known, model), workload.input_error),
    )
    return JobPlan(
        model=model,
        workload=workload,
        demand=demand,
        found=found,
        hosted=tuple(hosted_prices(today)),
        identity=_identity(request, source, defaults, config, objects),
        day=today,
        notes=(*notes, *_refused(lines), *_notes(workload, model, known.lengths, request)),
        names_tokens=kind.engine.splits_prompts or request.arguments.get(_TOKENS) is not None,
    )


def _demand(request: PlanRequest, workload: Workload, lines: InputLines) -> Demand:
    """What the rows ask for; an input without any that an engine could answer is refused, with a reason."""
    if not workload.rows and lines.first_invalid is not None:
        raise InputError([lines.first_invalid])
    demand = workload.demand()
    return replace(demand, hit_share=0.0) if _without_cache(request) else demand


def _without_cache(request: PlanRequest) -> bool:
    return request.arguments.get("enable_prefix_caching") is False


def _kind(request: PlanRequest, lines: InputLines) -> Kind:
    """One job runs one kind of engine: what the user says tells, or the first row of a batch file."""
    kind = kind_named(request.rows.kind)
    if kind.sound is None and (first := next(iter(lines), None)) is not None:
        kind = KINDS[decode(first).url]
    if kind.sound is not None:
        raise ConfigError(
            "dray plan cannot price transcriptions and translations of sound: it does not know what their "
            "encoders cost, nor how long answers will be; dray run needs no plan"
        )
    return kind


def _identity(
    request: PlanRequest,
    source: Source,
    defaults: RowDefaults,
    config: bytes,
    objects: ObjectStoreOptions | None,
) -> dict[str, str]:
    """A digest of the input as it is, without overrides: no run has them, so none is to take such a plan."""
    found = identity_of(source, defaults, config, objects)
    return found | {OVERRIDES: ", ".join(sorted(request.overrides))} if request.overrides else found


def _model(folder: Path, arguments: Mapping[str, Any]) -> ModelFacts:
    """Facts of the model, with the length that engine arguments leave of it."""
    model = read_model(folder)
    length = whole(arguments, "max_model_len")
    return model if length is None else replace(model, max_length=min(length, model.most_length))


def _counting(request: PlanRequest, folder: Path, model: ModelFacts, known: Known) -> Counting:
    arguments = with_template_text(request.arguments)
    return Counting(
        tokenizer=TokenizerAt(
            folder=str(arguments.get("tokenizer") or folder),
            chat_template=arguments.get("chat_template"),
            chat_template_content_format=str(arguments.get("chat_template_content_format", "auto")),
            image_tokens=request.image_tokens,
            tokenizer_mode=str(arguments.get("tokenizer_mode", "auto")),
        ),
        image_tokens=request.image_tokens,
        sample=request.sample or None,
        max_length=model.max_length,
        lengths=known.lengths,
        output_error=known.output_error,
    )


def _with_lengths(known: Known, model: ModelFacts, lines: InputLines) -> Known:
    """What is known, with the lengths of earlier answers to such requests, where finished runs tell them."""
    if known.lengths is not None or not any(one.shape for one in known.runs):
        return known
    lengths = learned_lengths(known.runs, model, shape_of_rows(islice(lines, LOOKED_AT)))
    error = lengths.error if isinstance(lengths, Learned) else None
    return known if lengths is None else replace(known, lengths=lengths, output_error=error)


def _phi(known: Known, model: ModelFacts) -> PhiFor:
    """The efficiency that finished runs measured, or the prior where there are none."""
    if not known.runs:
        return known.phi
    version = installed_version("vllm")
    return learned(known.runs, model, version=None if version is None else version.partition("+")[0])


def _catalogue(request: PlanRequest, known: Known) -> Catalogue:
    """All hardware. A machine at hand without a price is taken only by name: it would always be cheapest."""
    catalogue = known.catalogue or known_catalogue()
    if not request.hardware:
        free = [name for name, one in catalogue.instances.items() if _is_free(one)]
        catalogue = Catalogue({k: v for k, v in catalogue.instances.items() if k not in free})
    return with_starts(catalogue, known.runs)


def _is_free(instance: Instance) -> bool:
    return instance.device.calibrated and not any(price.likely for price in instance.on_demand)


def _doubted(phi: PhiFor, error: float) -> PhiFor:
    """Phi with bounds further off by what the tokens of the prompts may be off."""
    if not error:
        return phi

    def wider(device: str, weights: str) -> Phi:
        return phi(device, weights).widened(1.0 + error, "prompt tokens not all counted")

    return wider


def _refused(lines: InputLines) -> list[str]:
    """The rows for which a run refuses the input."""
    said = []
    if lines.invalid:
        are = (
            "1 row is no valid request"
            if lines.invalid == 1
            else f"{lines.invalid:,} rows are no valid requests"
        )
        said.append(f"{are} ({lines.first_invalid})" if lines.first_invalid is not None else are)
    if lines.repeated:
        have = "1 row has" if lines.repeated == 1 else f"{lines.repeated:,} rows have"
        said.append(
            f"{have} the custom_id of an earlier row (first: row {lines.first_repeated:,} of the input)"
        )
    return [f"{one}: `dray run` refuses the input, or makes error rows with --skip-invalid." for one in said]


def _notes(workload: Workload, model: ModelFacts, lengths: Lengths | None, request: PlanRequest) -> list[str]:
    """What a user should know of the rows before the first dollar."""
    rows = workload.rows
    said = []
    if workload.shared and _without_cache(request):
        said.append(
            "No prefix is served, as the engine is to have no cache for them (enable_prefix_caching)."
        )
    if workload.refused:
        said.append(f"{workload.refused:,} rows are requests that the engine will refuse: error rows.")
    if workload.images:
        said.append(
            f"{workload.images:,} images, sounds or videos count as {request.image_tokens:,} tokens each "
            "(--image-tokens): models make 64 to some thousand of an image, by its size, 5 to 25 of a second "
            "of sound, and some hundred of a second of video."
        )
    if workload.too_long:
        said.append(
            f"{workload.too_long:,} rows have a prompt, or max_tokens, of more tokens than the "
            f"{model.max_length:,} that the model takes: error rows, unless `--overflow` makes them fit."
        )
    if workload.cut:
        said.append(
            f"{workload.cut:,} rows have max_tokens that do not fit behind their prompts: answers end at the "
            f"model's {model.max_length:,} tokens."
        )
    if isinstance(lengths, Learned):
        said.append(
            f"Answers are taken as long as those of {lengths.jobs} finished "
            f"{'job' if lengths.jobs == 1 else 'jobs'} with such requests: {lengths.mean:.0f} tokens, or "
            f"{lengths.error:.0%} more or less."
        )
    elif isinstance(lengths, AtLeast):
        taken = ", and are taken as long as max_tokens allows" if workload.unbounded < rows else ""
        said.append(
            "Many answers to such requests ended at their max_tokens in earlier jobs: they have "
            f"{lengths.mean:.0f} tokens at least{taken}."
        )
    if workload.unbounded and not isinstance(lengths, Learned):
        said.append(
            f"{workload.unbounded:,} of {rows:,} rows set no max_tokens, so their outputs are guessed: "
            "give --max-tokens, or see what --set max_tokens=N changes."
        )
    return said


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "instance": plan.instance.name,
        "gpu": plan.instance.device.name,
        "machines": plan.machines,
        "replicas": plan.replicas,
        "spot": plan.spot,
        "dollars_per_hour": plan.price.likely * plan.machines,
        "price_day": plan.price.day.isoformat(),
        "price_source": plan.price.source,
        "dollars": asdict(plan.dollars),
        "dollars_per_million_tokens": asdict(plan.dollars_per_million_tokens),
        "seconds": asdict(plan.seconds),
        "requests_per_second": asdict(plan.requests_per_second),
        "phases": {**asdict(plan.time), "total": plan.time.total},
        "bill": {**asdict(plan.bill), "total": plan.bill.total},
        "phi": asdict(plan.phi),
        "weights": plan.setting.weights,
        "notes": list(plan.notes),
    }


def _plain(value: Any) -> Any:
    """JSON's objects have texts as keys."""
    return {str(key): _plain(part) for key, part in value.items()} if isinstance(value, dict) else value
