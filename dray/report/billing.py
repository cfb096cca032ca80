"""The bill in words and figures; shared by the page, the markdown and the command line."""

from __future__ import annotations

from dataclasses import dataclass

from dray import wording
from dray.account import Account

_MEANT = {
    "useful": "rows whose answers were kept",
    "cold_start": "from the start to the first replicas' engines: machines, weights, engines",
    "idle_tail": "ready without a row, mostly while the last rows finish; writing the files",
    "interrupted": "rows in the engine of a replica that was lost, and the start of its successor",
    "recomputed": "rows that another replica answered as well",
}


@dataclass(frozen=True, kw_only=True)
class BillRow:
    """A part of the bill as people read it."""

    name: str
    time: str
    share: str
    dollars: str
    meaning: str


def bill_rows(account: Account) -> tuple[BillRow, ...]:
    """The parts, and their sum at the end."""
    rows = [
        BillRow(
            name=wording.plain(part.name),
            time=wording.duration(part.micros / 1e6),
            share=wording.share(part.micros, account.node_micros),
            dollars=_money(part.dollars_micros),
            meaning=_MEANT.get(part.name, ""),
        )
        for part in account.parts
    ]
    whole = BillRow(
        name="in all",
        time=wording.duration(account.node_seconds),
        share=wording.share(account.node_micros, account.node_micros),
        dollars=_money(account.dollars_micros),
        meaning="",
    )
    return (*rows, whole)


def bill_sentences(account: Account) -> tuple[str, ...]:
    """The price, the GPU time, dollars per million tokens, and what was predicted."""
    found = [f"{wording.duration(account.node_seconds)} of nodes"]
    if account.gpu_seconds:
        found[0] += f" and {wording.duration(account.gpu_seconds)} of GPUs"
    if account.price is not None:
        found[0] += f", at {wording.money(account.price / 1e6)} per node hour ({account.source})"
    elif account.dollars is None:
        found[0] += "; no price is known: give one with --price"
    per_million = account.dollars_per_million_tokens
    if per_million is not None:
        found.append(f"{wording.money(per_million)} per million prompt and completion tokens")
    predicted = account.predicted
    if predicted is not None:
        told = f"predicted: {wording.duration(predicted.seconds)}"
        told += f" ({wording.duration(predicted.seconds_low)} to {wording.duration(predicted.seconds_high)})"
        if predicted.dollars is not None:
            told += f", {wording.money(predicted.dollars)}"
        told += f"; it took {wording.duration(predicted.took)}"
        found.append(told + (f"; {predicted.reason}" if predicted.reason else ""))
    return tuple(f"{one[:1].upper()}{one[1:]}." for one in found)


def bill_lines(account: Account) -> tuple[str, ...]:
    """The bill for a terminal."""
    rows = bill_rows(account)
    widths = [max(len(getattr(row, name)) for row in rows) for name in ("name", "time", "dollars")]
    return (
        *(
            f"{row.name:<{widths[0]}}  {row.time:>{widths[1]}}  {row.dollars:>{widths[2]}}  {row.share:>6}"
            for row in rows
        ),
        *bill_sentences(account),
    )


def _money(micros: int | None) -> str:
    return wording.NONE if micros is None else wording.money(micros / 1e6)
