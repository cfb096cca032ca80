"""Rules over all rows of a job: one model beside its adapters, and one kind of engine."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Any

from dray.codes import JobCode
from dray.kinds import KINDS, Kind
from dray.requests.rejects import Reject
from dray.requests.sources import RowDefaults

_NAME_SHOWN = 100
_ALIKE = 0.8  # of difflib's ratio, from which on a name is taken for another one, misspelt


def note_on_names(defaults: RowDefaults, found: str | None) -> str | None:
    """What a user may want to know of the name ``found`` in rows: it may be that of an adapter, misspelt."""
    if not defaults.adapters or defaults.model_name is not None or found is None:
        return None
    return (
        f"rows with the model {found[:_NAME_SHOWN]!r} ask the model itself, for no adapter has this name; "
        "with --model-name such rows become error rows"
    )


def note_on_fields(defaults: RowDefaults, kinds: Collection[Kind]) -> str | None:
    """Which fields of the job no row takes: ``max_tokens`` is for engines that generate."""
    taken = frozenset[str]().union(*(kind.engine.fields for kind in kinds))
    lost = [name for name in defaults.sampling if name not in taken]
    if not kinds or not lost or any(kind.engine.generates for kind in kinds):
        return None
    asked = " and ".join(sorted(map(str, kinds)))
    known = f"; the job can set {', '.join(sorted(taken))}" if taken else ""
    return f"{', '.join(lost)}: without effect, no row takes it, for the rows ask for {asked}{known}"


class JobRules:
    """Sees every request once, and remembers the first contradiction of each sort."""

    def __init__(self, names: Sequence[str], model_name: str | None, adapters: Collection[str] = ()) -> None:
        self.model_name = model_name
        self.urls: dict[str, tuple[int, int]] = {}
        self.broken: dict[str, Reject] = {}
        self._names = names
        # With a name given, a row that names another is the engine's to refuse, alone.
        self._open = model_name is None
        self._adapters = adapters
        self._model_place = (0, 0)

    def check(self, index: int, file_no: int, line_no: int, url: str, body: dict[str, Any]) -> None:
        """Take note of one request."""
        if url not in self.urls:
            self._new_url(index, file_no, line_no, url)
        if self._open:
            model = body.get("model")
            if model != self.model_name and type(model) is str and model not in self._adapters:
                self._new_model(index, file_no, line_no, model)

    @property
    def _advice(self) -> str:
        beside = " beside its adapters (lora_modules)" if self._adapters else ""
        return f"one job runs one model{beside}: part the input, or set --model-name"

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds seen."""
        return frozenset(kind for url in self.urls if (kind := KINDS.get(url)) is not None)

    def _new_model(self, index: int, file_no: int, line_no: int, model: str) -> None:
        if self.model_name is None:
            self.model_name, self._model_place = model, (file_no, line_no)
            self._refuse_misspelt(index, file_no, line_no, model)
            return
        self._contradiction(
            "model_conflict",
            f"the row names the model {model[:_NAME_SHOWN]!r}, {self._at(self._model_place)} names "
            f"{self.model_name[:_NAME_SHOWN]!r}; {self._advice}",
            "body.model",
            (index, file_no, line_no),
        )

    def _refuse_misspelt(self, index: int, file_no: int, line_no: int, model: str) -> None:
        """The model itself would answer rows that were meant for an adapter.

        A name that is part of the other is no slip: adapters are often named after their model.
        """
        others = [name for name in self._adapters if name not in model and model not in name]
        for meant in difflib.get_close_matches(model, others, 1, _ALIKE):
            shown = model[:_NAME_SHOWN]
            self._contradiction(
                "model_conflict",
                f"the row names the model {shown!r}, and there is an adapter {meant[:_NAME_SHOWN]!r} "
                f"(lora_modules): correct the row, or, if {shown!r} is the model itself, say --model-name",
                "body.model",
                (index, file_no, line_no),
            )

    def _new_url(self, index: int, file_no: int, line_no: int, url: str) -> None:
        for other, place in self.urls.items():
            if KINDS[url].engine != KINDS[other].engine:
                self._contradiction(
                    "mixed_kinds",
                    f"the row asks {url}, {self._at(place)} asks {other}; "
                    "one engine cannot do both: part the input",
                    "url",
                    (index, file_no, line_no),
                )
        self.urls[url] = (file_no, line_no)

    def _contradiction(self, code: JobCode, message: str, field: str, place: tuple[int, int, int]) -> None:
        index, file_no, line_no = place
        reject = Reject(
            index=index,
            custom_id=None,
            file_no=file_no,
            line_no=line_no,
            code=code,
            message=message,
            field=field,
        )
        self.broken.setdefault(code, reject)

    def _at(self, place: tuple[int, int]) -> str:
        return f"{self._names[place[0]]}:{place[1]}"
