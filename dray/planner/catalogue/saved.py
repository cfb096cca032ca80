"""Machines that were calibrated, as files that the catalogue reads: one a machine, with its date."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import orjson

from dray.errors import ConfigError
from dray.planner.catalogue.calibrated import Measured, calibrated
from dray.planner.catalogue.loading import Catalogue, load_catalogue
from dray.storage.files import write_atomic
from dray.storage.home import home_folder

FOLDER_VARIABLE = "DRAY_HARDWARE"
"""The variable that names another folder for calibrated machines."""


def folder() -> Path:
    """Where calibrated machines are kept.

    Raises:
        ConfigError: this user has no home.
    """
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or home_folder() / ".local/share") / "dray" / "hardware"


def save(measured: Measured, into: Path | None = None) -> Path:
    """Keep a machine's figures, in place of earlier ones of the same name; returns the file.

    Raises:
        ConfigError: a figure cannot be, or the folder cannot be written.
    """
    calibrated(measured)
    name = re.sub(r"[^A-Za-z0-9]+", "-", measured.name).strip("-").lower() or "machine"
    file = (into or folder()) / f"{name}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with write_atomic(str(file)) as written:
            written.write(orjson.dumps(asdict(measured), option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
    return file


def saved(from_: Path | None = None) -> list[Measured]:
    """The machines that were calibrated, by name.

    Raises:
        ConfigError: a file cannot be read, or is not one of :func:`save`; names it.
    """
    return [_read(file) for file in sorted((from_ or folder()).glob("*.json"))]


def known_catalogue(from_: Path | None = None) -> Catalogue:
    """The catalogue that dray ships, with the machines that were calibrated."""
    catalogue = load_catalogue()
    for measured in saved(from_):
        catalogue = catalogue.with_instance(calibrated(measured))
    return catalogue


def _read(file: Path) -> Measured:
    try:
        found: Mapping[str, Any] = orjson.loads(file.read_bytes())
        measured = Measured(**{**found, "day": date.fromisoformat(found["day"])})
        calibrated(measured)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"{file}: is no calibration of this version of dray; run `dray doctor --calibrate` again"
        ) from None
    return measured
