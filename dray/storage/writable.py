"""Whether outputs can be written to a folder: tried before any work."""

from __future__ import annotations

from contextlib import suppress

from dray.errors import ConfigError, JobFailedError
from dray.storage import objects
from dray.storage.addresses import HUB
from dray.storage.file_system import refuse_unpacked
from dray.storage.files import join, local_path, written_aside
from dray.storage.objects import ObjectStoreOptions, is_object, is_s3
from dray.storage.s3_uploads import try_upload


def check_writable(directory: str, *, options: ObjectStoreOptions | None = None) -> None:
    """Make sure, before any work, that files can be written there; ConfigError says why not."""
    if objects.is_web(directory):
        raise ConfigError(f"{directory}: outputs cannot be written over HTTP; name a folder or a bucket")
    if directory.startswith(HUB):
        raise ConfigError(f"{directory}: outputs cannot be written to a hub; name a folder or a bucket")
    try:
        if not is_object(directory):
            refuse_unpacked(local_path(directory))
            if local_path(directory).is_file():
                raise ConfigError(f"{directory}: the output is a file; name a folder")
        _write_and_remove(directory, options)
    except (JobFailedError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = getattr(cause, "strerror", None) or cause
        raise ConfigError(f"{directory}: the output folder cannot be written ({reason})") from error


def _write_and_remove(directory: str, options: ObjectStoreOptions | None) -> None:
    """Write a file that a process killed in the midst of it leaves under a name that the next one removes."""
    content = b"dray checks that it can write here\n"
    if is_object(directory):
        uri = join(join(directory, ".dray"), "write-check")
        objects.put(uri, content, options)
        with suppress(FileNotFoundError):  # another process checks the same folder
            objects.delete(uri, options)
        if is_s3(directory):  # outputs go there by another client, in parts
            try_upload(directory, options)
        return
    folder = local_path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    with written_aside(directory, folder, hashed=False, name="dray-write-check") as file:
        file.write(content)
        file.sync()
