"""How many of a job's answers are right.

    python -m examples.tickets.score OUTPUT_DIR

reads ``output.jsonl`` (the OpenAI batch output format) in that folder, compares it with ``labels.jsonl``
beside this file, and ends with exit status 1 where fewer than 95% are right in all three fields.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LABELS = Path(__file__).parent / "labels.jsonl"
FIELDS = ("category", "urgency", "order")
ENOUGH = 0.95
_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Miss:
    """One wrong field of one answer; ``got`` is None where there was no answer to read."""

    custom_id: str
    field: str
    want: str
    got: str | None


@dataclass(frozen=True, kw_only=True)
class Score:
    """Counts of right answers out of ``requests``; a request without an answer is wrong in every field."""

    requests: int
    right: dict[str, int]  # by field
    all_right: int
    misses: tuple[Miss, ...]  # in the order of the labels

    @property
    def accuracy(self) -> float:
        """The share of requests that are right in all three fields."""
        return self.all_right / self.requests


def score(output_path: Path, labels_path: Path = LABELS) -> Score:
    """Compare a batch output file with the labels.

    Raises ``FileNotFoundError`` where one of the files is missing, and ``ValueError`` where a line of them
    is not the JSON it should be, or no request is labelled. A wrong or unreadable *answer* is no error: it
    is counted.
    """
    answers = dict(_answers(output_path))
    right = dict.fromkeys(FIELDS, 0)
    misses: list[Miss] = []
    requests = all_right = 0
    for label in _lines(labels_path):
        requests += 1
        wrong = _misses(label, answers.get(label["custom_id"]))
        for field in FIELDS:
            right[field] += field not in {miss.field for miss in wrong}
        all_right += not wrong
        misses += wrong
    if not requests:
        raise ValueError(f"{labels_path}: no labels")
    return Score(requests=requests, right=right, all_right=all_right, misses=tuple(misses))


def _misses(label: dict[str, Any], answer: dict[str, Any] | None) -> list[Miss]:
    custom_id = label["custom_id"]
    wanted = {field: json.dumps(label[field]) for field in FIELDS}
    if answer is None or set(answer) != set(FIELDS):
        return [Miss(custom_id=custom_id, field=field, want=want, got=None) for field, want in wanted.items()]
    got = {field: json.dumps(answer[field]) for field in FIELDS}
    return [
        Miss(custom_id=custom_id, field=field, want=wanted[field], got=got[field])
        for field in FIELDS
        if got[field] != wanted[field]
    ]


def _answers(path: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    for line in _lines(path):
        body = (line.get("response") or {}).get("body") or {}
        choices = body.get("choices") or [{}]
        content = (choices[0].get("message") or {}).get("content")
        yield line["custom_id"], _object(content)


def _object(content: str | None) -> dict[str, Any] | None:
    try:
        value = json.loads(content or "")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                value = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not JSON") from error
            if not isinstance(value, dict) or "custom_id" not in value:
                raise ValueError(f"{path}, line {number}: not an object with a custom_id")
            yield value


def as_text(result: Score) -> str:
    """The score as a few lines for a terminal."""
    lines = [f"{field:<10}{_share(result.right[field], result.requests)}" for field in FIELDS]
    lines.append(f"{'all three':<10}{_share(result.all_right, result.requests)}")
    if result.misses:
        lines += ["", "Some that are wrong:"]
        lines += [f"  {m.custom_id}  {m.field:<10}{_shown(m)}" for m in result.misses[:_SHOWN]]
    return "\n".join(lines)


def _share(right: int, requests: int) -> str:
    return f"{right / requests:7.2%}  {right} of {requests}"


def _shown(miss: Miss) -> str:
    return f"{miss.got} instead of {miss.want}" if miss.got is not None else "no answer to read"


def main() -> None:
    """Print the score of a folder, and say by the exit status whether it is enough."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="the folder that output.jsonl is in, or the file itself")
    parser.add_argument("--labels", type=Path, default=LABELS)
    arguments = parser.parse_args()
    path = arguments.output / "output.jsonl" if arguments.output.is_dir() else arguments.output
    try:
        result = score(path, arguments.labels)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot score: {error}")
    print(as_text(result))
    if result.accuracy < ENOUGH:
        sys.exit(f"{result.accuracy:.2%} are right in all three fields; {ENOUGH:.0%} are asked for")


if __name__ == "__main__":
    main()
