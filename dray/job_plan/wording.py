"""A plan as people read it: in a terminal, and as the markdown of an artifact."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dray.job_plan.job_plan import JobPlan
from dray.planner.cost import Interval, Plan, Refusal
from dray.planner.workload import Spread, Workload
from dray.wording import compact, count, duration, money, plural, share

HEADER = ("#", "hardware", "settings", "dollars", "$ per M tokens", "done in")
_REFUSALS = 3


def summary_of(found: JobPlan) -> list[str]:
    """The rows in sentences: how many, how long, what they share, how sure that is."""
    load = found.workload
    tokens = load.rows * (load.input.mean + load.output.mean)
    said = [
        f"{plural(load.rows, 'request')}, {compact(tokens)} tokens with {found.model.name} "
        f"({found.model.format}); counted {load.counted}.",
        f"Input: {_lengths(load.input)}. {_outputs(load)}",
    ]
    return [*said, _prefixes(load)] if load.groups else said


def _lengths(spread: Spread) -> str:
    return (
        f"{compact(spread.mean)} tokens in the mean (median {compact(spread.median)}, "
        f"99% {compact(spread.p99)}, longest {compact(spread.longest)})"
    )


def _outputs(load: Workload) -> str:
    if not load.output_error:
        return f"Output: {_lengths(load.output)}."
    if load.unbounded:
        whose = f"{plural(load.unbounded, 'request')} without a limit"
        return f"Output: {_lengths(load.output)}, a guess for {whose}."
    return f"Output: at most {_lengths(load.output)}; how much of it is used shows in a run."


def _prefixes(load: Workload) -> str:
    served = (f"{share(part, 1)} with {compact(size)}" for size, part in load.in_input_order.items())
    groups = f"{count(load.groups)} {'group' if load.groups == 1 else 'groups'}"
    return (
        f"{share(load.shared, 1)} of the input is prefixes that other rows have too: {groups} of "
        f"{count(load.grouped)} rows, the largest of {count(load.largest)}. Plans suppose that rows run in "
        f"the order of their prefixes. In the input's order a cache would serve {', '.join(served)} tokens."
    )


def table_of(found: JobPlan, most: int) -> list[tuple[str, ...]]:
    """The cells of the best plans; of the nearest ones where no plan is within the limits."""
    shown = found.best[:most] or list(found.found.nearest)
    return [_cells(number, plan) for number, plan in enumerate(shown, start=1)]


def _cells(number: int, plan: Plan) -> tuple[str, ...]:
    market = "spot" if plan.spot else "on demand"
    gpus = plan.machines * plan.instance.devices
    one = plan.setting
    split = "".join(
        f"{name}{size} "
        for name, size in (("TP", one.tensor_parallel), ("PP", one.pipeline_parallel))
        if size > 1
    ) + (f"over {one.nodes} nodes " if one.nodes > 1 else "")
    return (
        str(number),
        f"{plan.machines} x {plan.instance.name} ({gpus} {plan.instance.device.name}) {market}",
        f"{split}{one.weights}, {one.max_num_seqs} seqs",
        spread(plan.dollars, money),
        spread(plan.dollars_per_million_tokens, money),
        spread(plan.seconds, duration),
    )


def spread(value: Interval, said: Callable[[float], str]) -> str:
    """The likely value, and the bounds around it."""
    return f"{said(value.likely)} ({said(value.low)} to {said(value.high)})"


def hosted_lines(found: JobPlan) -> list[str]:
    """What hosted batch APIs charge for the same tokens, beside the first plan."""
    first = found.best[0].dollars.likely if found.best else 0.0
    lines = []
    for price, dollars in found.hosted_dollars():
        beside = f", {dollars / first:.1f} times the first plan" if first > 0 else ""
        lines.append(f"{price.name}: {money(dollars)}{beside} (price of {price.date})")
    return lines


def warnings_of(found: JobPlan) -> list[str]:
    """What makes figures unsure, once each; the first plan's own notes among it."""
    shown = found.best[:1] or list(found.found.nearest)[:1]
    own = [f"{plan.instance.name}: {note}" for plan in shown for note in plan.notes]
    unsure = [f"Rates are not measured here: {plan.phi.reason}." for plan in shown if plan.phi.assumed]
    sure = [f"{plan.instance.name}: how fast it runs is known from {plan.phi.reason}." for plan in shown]
    return list(dict.fromkeys([*found.notes, *own, *(unsure or sure)]))


def settings_lines(found: JobPlan) -> list[str]:
    """The engine arguments of the first plan, as `dray run` takes them."""
    arguments = found.arguments_of(found.best[0]) if found.best else {}
    given = " ".join(f"--engine-arg {name}={value}" for name, value in arguments.items() if value > 1)
    if not given:
        return []
    lines = [f"`dray run` with the first plan's settings: {given}"]
    weights = found.best[0].setting.weights
    if weights not in (found.model.format, "bf16" if found.model.format == "fp32" else None):
        lines.append(
            f"It supposes weights in {weights}: give a model in {weights}, or --engine-arg "
            f"quantization={weights} if the engine can make it. Answers differ from the model's own."
        )
    return lines


def refusal_lines(found: JobPlan) -> list[str]:
    """Where nothing can run: what stands in the way on each of the nearest instances."""
    if found.found.plans or found.found.nearest:
        return []
    nearest: dict[str, Refusal] = {}
    for one in sorted(found.found.refusals, key=lambda one: one.distance):
        nearest.setdefault(one.instance, one)
    return [f"{one.instance}: {one.reason}" for one in nearest.values()][:_REFUSALS]


def lines_of(found: JobPlan, *, most: int) -> list[str]:
    """The plan for a terminal."""
    table = table_of(found, most)
    lines = ["", *summary_of(found), ""]
    if table:
        lines += [*_aligned([HEADER, *table]), ""]
    lines += [found.why, *settings_lines(found), *refusal_lines(found)]
    if hosted := hosted_lines(found):
        lines += ["", "Hosted batch prices for the same tokens:", *(f"  {line}" for line in hosted)]
    if notes := warnings_of(found):
        lines += ["", *(f"note: {note}" for note in notes)]
    return lines


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def markdown_of(found: JobPlan, *, most: int) -> str:
    """The plan as the text of an artifact: all that a terminal shows."""
    rows = [HEADER, ("---:", *["---"] * (len(HEADER) - 1)), *table_of(found, most)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    hosted = "\n".join(f"- {line}" for line in hosted_lines(found))
    notes = "\n".join(f"- {note}" for note in warnings_of(found))
    blocks = [
        f"**{found.why}**",
        *settings_lines(found),
        table if len(rows) > 2 else "",
        "\n".join(f"- {line}" for line in refusal_lines(found)),
        "\n\n".join(summary_of(found)),
        f"Hosted batch prices for the same tokens:\n\n{hosted}" if hosted else "",
        notes,
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"
