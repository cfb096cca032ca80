"""The report as markdown, for places that show text: Prefect's artifacts, issues, chat."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from dray import wording
from dray.report.billing import bill_rows, bill_sentences
from dray.report.data import ReportData
from dray.report.summary import figures, sentences
from dray.storage.objects import ObjectStoreOptions

_WEB = r"https?://[^\s()<>\"|]+"
_OTHER_S3 = frozenset({"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"})
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&$])")


def render_markdown(data: ReportData, *, links: Mapping[str, str] | None = None) -> str:
    """Headline, bill, errors by code, files. ``links`` maps a label to a URI, shown at the end.

    Web addresses become links; other URIs are shown as code, since a browser cannot follow them.
    """
    blocks = [
        f"# {_text(data.title or data.job_id)}",
        f"**{_text(wording.plain(data.state))}** · {_code(data.job_id)}" + _origin(data),
        _text(" ".join(sentences(data))),
        _table(
            ("", "", ""),
            [(f.name, f"**{_text(f.value)}**", _text(f.note)) for f in figures(data)],
            align="lrl",
        ),
        *_bill(data),
        *_errors(data),
        *_files(data),
        "\n".join(f"- {_text(label)}: {_link(uri)}" for label, uri in (links or {}).items()),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def web_address(uri: str, options: ObjectStoreOptions | None = None) -> str | None:
    """Where a browser can see the object at ``uri``; None for local files and stores without such a page.

    Objects of Amazon S3 are shown by its console, to people who are signed in there. ``options`` are those by
    which the object was written, None for the environment's.
    """
    if re.fullmatch(_WEB, uri):
        return uri
    found = re.fullmatch(r"s3://([^/]+)/(.+)", uri)
    if found is None or _OTHER_S3 & os.environ.keys() or (options is not None and _has_endpoint(options)):
        return None
    return f"https://console.aws.amazon.com/s3/object/{found[1]}?prefix={quote(found[2])}"


def _has_endpoint(options: ObjectStoreOptions) -> bool:
    return options.endpoint is not None or any("endpoint" in name.lower() for name, _ in options.extra)


def _origin(data: ReportData) -> str:
    return "".join(f" · {_text(part)}" for part in (data.model, data.kind, data.engine) if part)


def _bill(data: ReportData) -> list[str]:
    if data.account is None:
        return []
    rows = [
        (_text(row.name), row.time, row.share, _text(row.dollars), _text(row.meaning))
        for row in bill_rows(data.account)
    ]
    head = ("node time", "", "", "cost", "for")
    told = _text(" ".join(bill_sentences(data.account)))
    return ["## What it cost", _table(head, rows, align="lrrrl"), told]


def _errors(data: ReportData) -> list[str]:
    if not data.measures.errors:
        return []
    rows = [
        (
            _code(error.code),
            wording.count(error.count),
            ", ".join(_code(wording.clip(example)) for example in error.examples),
        )
        for error in data.measures.errors
    ]
    return ["## Errors by code", _table(("code", "rows", "for example"), rows, align="lrl")]


def _files(data: ReportData) -> list[str]:
    if not data.files:
        return []
    rows = [
        (_link(file.uri, file.name), wording.size(file.size), _code(file.sha256[:16] + "…"))
        for file in data.files
    ]
    return ["## Files", _table(("file", "size", "sha256"), rows, align="lrl")]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, align: str) -> str:
    rule = ["---:" if side == "r" else ":---" for side in align]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _link(uri: str, name: str | None = None) -> str:
    if re.fullmatch(_WEB, uri):
        return f"[{_text(name or uri)}]({uri})"
    return _code(uri)


def _text(value: str) -> str:
    """``value`` as it is: markdown and HTML in it are shown, not obeyed."""
    return _SPECIAL.sub(r"\\\1", " ".join(value.split()))


def _code(value: str) -> str:
    """``value`` as code; backticks and pipes would end the span or the cell."""
    flat = " ".join(value.split()).replace("`", "'").replace("|", "¦")
    return f"`{flat}`"
