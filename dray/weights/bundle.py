"""The cache bundle: what vLLM compiled and inspected at its start, kept for the next replica, on any node.

A bundle is one object, ``LOCATION/KEY.tar.zst``: a tar of the folder that ``cache_environment`` makes vLLM
and its compilers write to, and behind it its SHA-256 in a frame that zstd skips, so that ``tar --zstd -tf``
lists it. One object is written in one go: a reader sees all of it, or nothing.

Trust: a bundle holds compiled code and pickles, which replicas load and run. Whoever may write to its
location can run code in the replicas of everybody who names that location. The digest finds damage, not
intent: it lies beside what it vouches for. So there is no bundle unless the user names a location, and the
location must be writable only to those who may run code in the replicas anyway. The same holds for the
folder that bundles are unpacked into, which is therefore refused when others can write to it.

Paths: Triton's groups and ninja's logs hold absolute paths (``put_group`` in triton/runtime/cache.py;
FlashInfer's build.ninja), so a bundle is of full use only in a folder of the same name. The name is part of
the key: nodes that keep bundles elsewhere have bundles of their own. vLLM hashes the model's path too
(``ModelConfig.compute_hash`` in vllm/config/model.py): callers put it into the configuration.
"""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import importlib.util
import io
import json
import logging
import os
import platform
import re
import runpy
import shutil
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Any, cast

from dray.requests import objects, streams
from dray.requests.files import AtomicFile, exists, join, local_path, write_atomic
from dray.requests.objects import BLOCK_BYTES, ObjectStoreOptions, is_object
from dray.weights.ready import boot_id

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "DRAY_BUNDLE_CACHE"
LIMIT_BYTES = 8 << 30
"""Bytes of a bundle, packed and unpacked: a runaway cache is neither saved nor restored."""

LIMIT_FILES = 200_000

_FORMAT = 1  # goes into the key: a change of the format starts anew
_MARKER = ".restored"
_TIME = "DRAY.mtime_ns"  # in whole nanoseconds: tar's own float loses digits, and ninja compares all of them
# A frame that zstd skips (RFC 8878, section 3.1.2): magic number, bytes; then the key and the SHA-256 in hex.
_FRAME = struct.pack("<II", 0x184D2A50, 128)
_TRAILER_BYTES = len(_FRAME) + 128
# Ninja decides by times whether what is built there is current; elsewhere names are digests of the content.
_BUILT_BY_NINJA = ("flashinfer/", "tvm-ffi/", "torch-extensions/")
# Locks, and files on their way: Triton's tmp.pid_*, Inductor's *.tmp, vLLM's *.tmp.PID and mkstemp's names.
_PASSING = ("*.lock", "lock", "locks", "*.tmp", "*.tmp.*", "tmp", "tmp.*", "tmp????????", ".nfs*", "*.log")
# The first is about one node's wiring; the second holds downloads, even weights (VLLM_ASSETS_CACHE).
_NOT_SHARED = ("vllm/gpu_p2p_access_cache_for_*", "vllm/assets/*")


class _UnusableError(Exception):
    """A bundle that is damaged, or holds what no bundle holds; says what."""


def bundle_folder() -> Path:
    """Where bundles are unpacked: ``DRAY_BUNDLE_CACHE``, or ``dray/bundles`` in the user's cache folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(FOLDER_VARIABLE) or base / "dray" / "bundles").absolute()


def bundle_root(key: str) -> Path:
    """The folder for the caches of one key: nothing else comes into its bundle."""
    return bundle_folder() / key


def cache_environment(root: Path) -> dict[str, str]:
    """The variables that make vLLM and the compilers below it keep their caches under ``root``.

    To be set before vLLM is imported: FlashInfer and tvm_ffi read theirs at import, and Inductor puts its
    default into the environment. Read in vLLM 0.32, torch 2.13, Triton 3.9 and FlashInfer (August 2026).
    """
    folders = {
        # torch_compile_cache (AOT, Inductor), modelinfos, startup_plan, flashinfer_autotune_cache, deep_gemm
        # (utils/deep_gemm.py: DG_JIT_CACHE_DIR follows it): vllm/envs.py.
        "VLLM_CACHE_ROOT": "vllm",
        # vLLM moves it under VLLM_CACHE_ROOT when it compiles a model (compilation/decorators.py); this one
        # is for what is compiled outside the model, by default in /tmp/torchinductor_USER.
        # Precompiled C++ headers stay in /tmp (_HEADER_DIR in torch/_inductor/codecache.py): 150 MB, cheap.
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        # triton/knobs.py. vLLM sets it only when it compiles: after a warm start its kernels would be looked
        # for in ~/.triton (InductorAdaptor.initialize_cache in compilation/compiler_interface.py).
        "TRITON_CACHE_DIR": "triton",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",  # flashinfer/jit/env.py; it adds .cache/flashinfer
        "TVM_FFI_CACHE_DIR": "tvm-ffi",  # tvm_ffi/cpp/extension.py, _optional_torch_c_dlpack.py
        "TORCH_EXTENSIONS_DIR": "torch-extensions",  # torch/utils/cpp_extension.py
        "CUTE_DSL_CACHE_DIR": "cute-dsl",  # CUTLASS 4.3.2's release notes; by default in /tmp
        "QUACK_CACHE_DIR": "quack",  # quack/cache; by default in /tmp
        "TILELANG_CACHE_DIR": "tilelang",  # tilelang/env.py
        "HUMMING_CACHE_DIR": "humming",  # humming/utils/jit.py
    }
    # The startup plan is written and read only on request (vllm/v1/worker/startup_plan.py). Not here: the
    # driver's CUDA_CACHE_PATH, whose files are the driver's, and whose version is not in the key.
    return {name: str(root / folder) for name, folder in folders.items()} | {"VLLM_ENABLE_STARTUP_PLAN": "1"}


# ---- the key ----


def bundle_key(
    *, model_key: str, versions: Mapping[str, str], hardware: str, configuration: Mapping[str, Any]
) -> str:
    """The name of the bundle for this model, software, hardware and configuration (64 hexadecimal digits).

    ``configuration`` is what the engine gets, with the model's path. The folder of ``bundle_folder`` counts
    too, because files in a bundle name it.
    """
    parts = {
        "format": _FORMAT,
        "folder": str(bundle_folder()),
        "model": model_key,
        "versions": dict(versions),
        "hardware": hardware,
        "configuration": dict(configuration),
    }
    # Paths and enums as text. What has no stable text gives a key that nobody finds: a cold start.
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def versions_and_hardware() -> tuple[dict[str, str], str]:
    """What compiled code depends on, beside model and configuration.

    Neither vLLM nor torch is imported for it: the key decides on variables that must be set before that.
    """
    torch = _declared("torch", "version.py")
    accelerator = torch.get("cuda") or torch.get("hip")
    versions = {
        "vllm": str(_declared("vllm", "_version.py").get("__version__", "")),
        "torch": str(torch.get("__version__", "")),
        "cuda": str(accelerator or ""),
        "triton": _installed("triton"),
        "flashinfer": _installed("flashinfer-python"),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
    }
    return versions, _gpu() if accelerator else _cpu()


def _declared(package: str, file: str) -> dict[str, Any]:
    """The names that a package's version file defines; none where it is not installed."""
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).with_name(file) if spec is not None and spec.origin else None
    return runpy.run_path(str(path)) if path is not None and path.is_file() else {}


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _gpu() -> str:
    """Name and compute capability of the first visible GPU; "unknown" where nobody says them.

    CUDA is left alone in this process: once it is initialised, vLLM cannot fork its workers.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    tool = ["nvidia-smi", f"--id={first}", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    # Second, and in seconds: a slice of a GPU, ROCm, a container without the tool.
    return _said(tool) or _said([sys.executable, "-c", _ASK_TORCH]) or "unknown"


_ASK_TORCH = """
import torch
found = torch.cuda.get_device_properties(0)
print(f"{found.name}, {getattr(found, 'gcnArchName', f'{found.major}.{found.minor}')}")
"""


def _said(command: list[str]) -> str:
    """What a command prints; nothing where it fails."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.strip()


def _cpu() -> str:
    """Model and instruction flags of the first processor: Inductor lets the compiler use all that it has."""
    names = {"vendor_id", "cpu family", "model", "model name", "stepping", "flags"}
    names |= {"CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"}
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    fields = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())
    }
    said = {name: " ".join(sorted(value.split())) for name, value in fields.items() if name in names}
    return f"{platform.machine()} {json.dumps(said, sort_keys=True)}"


# ---- restoring ----


def restore(location: str, key: str, cache_root: Path, options: ObjectStoreOptions | None = None) -> bool:
    """Unpack the bundle of this key into ``cache_root``; whether the caches there are those of a bundle.

    ``location`` is a folder or the URI of one in an object store, trusted as the module says: what comes from
    there is code. Replicas of a node that ask at the same time wait for the one that unpacks. A folder that
    has files of its own is left as it is. No bundle, a damaged one, a store out of reach: False, with a
    warning unless it is only missing, and nothing is written to the folder. Nothing is raised.
    """
    began = time.monotonic()
    try:
        _prepare(cache_root.parent)
        with _only_one(cache_root.with_name(f"{cache_root.name}.lock")):
            if _restored(cache_root):
                return True
            if _filled(cache_root) and not _marked(cache_root):
                logger.info("the engine's caches in %s are this node's own: no bundle restored", cache_root)
                return False
            if not _fetch(location, key, cache_root, options):
                logger.info("no cache bundle %s in %s yet", key[:12], location)
                return False
    except Exception as error:  # noqa: BLE001  a start without caches is slower, and a start
        logger.warning("the cache bundle %s is not used: %s", key[:12], _reason(error))
        return False
    logger.info("cache bundle %s restored in %.1f s", key[:12], time.monotonic() - began)
    return True


def _prepare(folder: Path) -> None:
    """Make the folder, for this user alone: code that lies in it is run."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"others can write to {folder}; set {FOLDER_VARIABLE} to a folder of your own")


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _marked(root: Path) -> bool:
    return (root / _MARKER).is_file()


def _restored(root: Path) -> bool:
    """Whether a bundle was unpacked there since the machine started: a power cut may tear an older one."""
    return _marked(root) and (root / _MARKER).read_text() == boot_id()


def _filled(root: Path) -> bool:
    return root.is_dir() and any(root.iterdir())


def _fetch(location: str, key: str, root: Path, options: ObjectStoreOptions | None) -> bool:
    """Download, verify, unpack, and only then put in place; False where there is no bundle."""
    partial = root.with_name(f"{root.name}.partial")  # one name, under the lock: kills leave one at most
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(mode=0o700)
        archive, tree = partial / "archive", partial / "tree"
        if not _download(_uri(location, key), archive, options):
            return False
        _verify(archive, key)
        _unpack(archive, tree)
        (tree / _MARKER).write_text(boot_id())
        if root.is_dir():  # empty, or the same files of before the machine started, perhaps torn
            shutil.rmtree(root)
        tree.rename(root)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


def _uri(location: str, key: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", key):
        raise ValueError(f"{key!r} is no key of a bundle")
    return join(location, f"{key}.tar.zst")


def _download(uri: str, path: Path, options: ObjectStoreOptions | None) -> bool:
    size = 0
    with path.open("wb") as file:
        try:
            for block in _blocks(uri, options):
                size += len(block)
                if size > LIMIT_BYTES:
                    raise _UnusableError(f"it has more than {LIMIT_BYTES:,} bytes")
                file.write(block)
        except FileNotFoundError:
            return False
    return True


def _blocks(uri: str, options: ObjectStoreOptions | None) -> Iterator[bytes]:
    if is_object(uri):
        yield from objects.stream(uri, options)
        return
    with local_path(uri).open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def _trailer(key: str, digest: str) -> bytes:
    return _FRAME + key.encode() + digest.encode()


def _verify(archive: Path, key: str) -> None:
    """Check the archive against its trailer, and cut the trailer off."""
    size = archive.stat().st_size - _TRAILER_BYTES
    if size <= 0:
        raise _UnusableError("it is cut off")
    with archive.open("r+b") as file:
        file.seek(size)
        trailer = file.read()
        file.truncate(size)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if trailer != _trailer(key, digest):
        raise _UnusableError("it is damaged: its SHA-256 is not the one at its end")


def _unpack(archive: Path, tree: Path) -> None:
    tree.mkdir(mode=0o700)
    with archive.open("rb") as raw, streams.decompressed(raw, "bundle.zst") as plain:
        limited = cast("IO[bytes]", _Limited(plain))
        with tarfile.open(fileobj=limited, mode="r|", bufsize=BLOCK_BYTES) as tar:
            for number, member in enumerate(tar):
                if number >= LIMIT_FILES:
                    raise _UnusableError(f"it has more than {LIMIT_FILES:,} files")
                _place(tar, member, tree)


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, tree: Path) -> None:
    """Write one file. Only regular ones are, so there is never a link on the way to another."""
    parts = member.name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise _UnusableError(f"{member.name!r} is no path inside the folder")
    if member.type != tarfile.REGTYPE or member.sparse is not None:
        raise _UnusableError(f"{member.name!r} is not a regular file")
    path = tree.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None  # it is a regular file
    with path.open("xb") as file:
        shutil.copyfileobj(source, file, BLOCK_BYTES)
    path.chmod(0o700 if member.mode & 0o100 else 0o600)
    if _TIME in member.pax_headers:
        nanoseconds = int(member.pax_headers[_TIME])
        os.utime(path, ns=(nanoseconds, nanoseconds))


class _Limited:
    """A stream that ends in an error where it gives more than a bundle may hold."""

    def __init__(self, inner: IO[bytes]) -> None:
        self._inner = inner
        self._left = LIMIT_BYTES

    def read(self, size: int) -> bytes:
        data = self._inner.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _UnusableError(f"it unpacks to more than {LIMIT_BYTES:,} bytes")
        return data


# ---- saving ----


def save(location: str, key: str, cache_root: Path, options: ObjectStoreOptions | None = None) -> bool:
    """Publish the caches in ``cache_root`` as the bundle of this key; whether this call did.

    The first one wins: where there is a bundle it stays, and caches that came from a bundle are not saved.
    The same files give the same bytes. The engine may run meanwhile; files that it takes away are left out.
    Nothing is raised: what goes wrong is a warning, and False.
    """
    began = time.monotonic()
    try:
        uri = _uri(location, key)
        if _marked(cache_root) or exists(uri, options=options):
            return False
        names = _names(cache_root)
        if not names:
            return False
        with write_atomic(uri, options=options) as file:
            _pack(file, cache_root, names)
            file.write(_trailer(key, file.info().sha256))
            if exists(uri, options=options):
                raise FileExistsError  # nothing is published when this block raises
    except FileExistsError:
        return False
    except Exception as error:  # noqa: BLE001  the engine is up: no reason to stop it
        logger.warning("the cache bundle %s is not saved: %s", key[:12], _reason(error))
        return False
    seconds = time.monotonic() - began
    logger.info("cache bundle %s saved: %.1f MB in %.1f s", key[:12], file.size / 1e6, seconds)
    return True


def _names(root: Path) -> list[str]:
    """The regular files worth keeping, relative to ``root``, in order."""
    names, size = [], 0
    for folder, folders, files in os.walk(root):  # does not follow links
        folders[:] = [name for name in folders if not _matches(name, _PASSING)]
        for name in files:
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            if _matches(name, _PASSING) or _matches(relative, _NOT_SHARED) or path.is_symlink():
                continue
            if path.is_file():
                names.append(relative)
                size += path.stat().st_size
    if size > LIMIT_BYTES or len(names) > LIMIT_FILES:
        raise _UnusableError(f"{len(names):,} files of {size:,} bytes are more than a bundle may hold")
    return sorted(names)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _pack(file: AtomicFile, root: Path, names: list[str]) -> None:
    import pyarrow

    raw = pyarrow.PythonFile(_Sink(file), mode="w")
    with (
        pyarrow.CompressedOutputStream(raw, "zstd") as packed,
        tarfile.open(
            fileobj=cast("IO[bytes]", packed), mode="w|", bufsize=BLOCK_BYTES, format=tarfile.PAX_FORMAT
        ) as tar,
    ):
        for name in names:
            _add(tar, root, name)


def _add(tar: tarfile.TarFile, root: Path, name: str) -> None:
    """Append one file, without owner, and without its time unless that decides whether it is built anew."""
    try:
        source = (root / name).open("rb")
    except FileNotFoundError:
        return
    with source:
        status = os.fstat(source.fileno())
        info = tarfile.TarInfo(name)
        info.size = status.st_size
        info.mode = 0o755 if status.st_mode & 0o100 else 0o644
        if name.startswith(_BUILT_BY_NINJA):
            info.pax_headers = {_TIME: str(status.st_mtime_ns)}
        tar.addfile(info, source)


class _Sink(io.RawIOBase):
    """An AtomicFile for pyarrow, which closes what it writes to."""

    def __init__(self, file: AtomicFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(bytes(data))
        return len(data)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
