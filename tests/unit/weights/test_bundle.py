"""The cache bundle: the same bytes for the same files, all or nothing, and nothing outside its folder."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from dray.weights import bundle
from dray.weights.bundle import archive, restoring
from dray.weights.bundle import key as keys

pytestmark = pytest.mark.unit

KEY = "ab" * 32
OTHER_KEY = "cd" * 32
NINJA = "flashinfer/.cache/flashinfer/90a/cached_ops/sampling"
KEPT = {
    "vllm/modelinfos/llama.json": b'{"hash": "1"}',
    "vllm/torch_compile_cache/torch_aot_compile/f00/rank_0_0/model": b"\x80\x05 code" * 50_000,
    "vllm/torch_compile_cache/torch_aot_compile/f00/inductor_cache/tr/tmpo4xq2ydl3kbn7.main.so": b"\x7fELF",
    "vllm/startup_plan/startup_plan_1.json": b"{}",
    "triton/KEY/__grp__kernel.json": b'{"child_paths": {}}',
    f"{NINJA}/sampling.so": b"\x7fELF",
    f"{NINJA}/.ninja_log": b"# ninja log v6\n",
    "empty": b"",
}
LEFT_OUT = (
    "vllm/torch_compile_cache/torch_aot_compile/f00/inductor_cache/locks/c2.lock",
    "vllm/startup_plan/startup_plan_1.json.tmp.4711",
    "vllm/modelinfos/tmp0a_b1c2x",
    "vllm/gpu_p2p_access_cache_for_0,1.json",
    "vllm/assets/model_streamer/weights/model.safetensors",
    "triton/KEY/tmp.pid_12_ab/kernel.cubin",
    "triton/KEY/lock",
    "inductor/.12.34.tmp",
    "flashinfer/.cache/flashinfer/90a/cached_ops/tmp/sampling.lock",
    "flashinfer/.cache/flashinfer/90a/flashinfer_jit.log",
)


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return tmp_path / "location"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the next replica unpacks."""
    return tmp_path / "node" / KEY


@pytest.fixture
def caches(tmp_path: Path) -> Path:
    """What an engine left behind."""
    return _fill(tmp_path / "caches")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.INFO, logger=bundle.__name__)
    yield caplog


def _fill(folder: Path) -> Path:
    for name, content in {**KEPT, **dict.fromkeys(LEFT_OUT, b"left out")}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / NINJA / "sampling.so").chmod(0o755)
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "outside").symlink_to("/etc")
    os.mkfifo(folder / "fifo")
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    found.pop(".restored", None)
    return found


def _archive(location: Path, key: str = KEY) -> Path:
    return location / f"{key}.tar.zst"


def _publish(location: Path, content: bytes, key: str = KEY) -> None:
    """Any content, with a trailer that is true: the digest is no defence against who writes it."""
    packed = pyarrow.compress(content, codec="zstd", asbytes=True)
    location.mkdir(exist_ok=True)
    digest = hashlib.sha256(packed).hexdigest()
    _archive(location, key).write_bytes(packed + archive.trailer_of(key, digest))


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def _nothing_written(root: Path) -> bool:
    return not root.exists() and {path.name for path in root.parent.iterdir()} == {f"{root.name}.lock"}


# ---- there and back ----


def test_round_trip(location: Path, caches: Path, root: Path) -> None:
    assert bundle.save(str(location), KEY, caches)
    assert bundle.restore(str(location), KEY, root)
    assert _files(root) == KEPT
    assert (root / NINJA / "sampling.so").stat().st_mode & 0o777 == 0o700
    assert (root / "empty").stat().st_mode & 0o777 == 0o600
    assert root.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in root.parent.iterdir()) == [KEY, f"{KEY}.lock"]
    assert [path.name for path in location.iterdir()] == [f"{KEY}.tar.zst"]


def test_a_location_as_file_uri(location: Path, caches: Path, root: Path) -> None:
    assert bundle.save(f"file://{location}", KEY, caches)
    assert bundle.restore(f"file://{location}", KEY, root)


def test_times_last_where_ninja_looks_at_them(location: Path, caches: Path, root: Path) -> None:
    times = {
        f"{NINJA}/sampling.so": 1_763_711_999_123_456_789,
        f"{NINJA}/.ninja_log": 1_763_712_000_987_654_321,
    }
    for name, nanoseconds in times.items():
        os.utime(caches / name, ns=(nanoseconds, nanoseconds))
    assert bundle.save(str(location), KEY, caches)
    assert bundle.restore(str(location), KEY, root)
    assert {name: (root / name).stat().st_mtime_ns for name in times} == times


@pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja is not installed")
def test_ninja_finds_nothing_to_do_in_what_was_restored(location: Path, tmp_path: Path) -> None:
    root, outside = tmp_path / "bundles" / KEY, tmp_path / "header.h"
    folder = root / NINJA
    folder.mkdir(parents=True)
    root.parent.chmod(0o700)
    outside.write_text("the installed header\n")
    (folder / "in.cu").write_text("generated source\n")
    (folder / "build.ninja").write_text(
        "rule cc\n  command = echo '$out: "
        f"{outside}' > $out.d && cat $in > $out\n  depfile = $out.d\n  deps = gcc\n"
        f"build {folder}/out.o: cc {folder}/in.cu\n"
    )
    ninja = ["ninja", "-C", str(folder)]
    subprocess.run(ninja, check=True, capture_output=True)
    assert bundle.save(str(location), KEY, root)
    shutil.rmtree(root)
    assert bundle.restore(str(location), KEY, root)
    assert b"no work to do" in subprocess.run(ninja, check=True, capture_output=True).stdout
    (folder / "in.cu").touch()
    assert b"no work to do" not in subprocess.run(ninja, check=True, capture_output=True).stdout


def test_the_archive_is_a_tar_that_zstd_reads(location: Path, caches: Path) -> None:
    assert bundle.save(str(location), KEY, caches)
    with pyarrow.input_stream(str(_archive(location)), compression="zstd") as packed:
        plain = io.BytesIO(packed.read())
    with tarfile.open(fileobj=plain) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(KEPT)
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    archives = []
    for number in (1, 2):
        caches = _fill(tmp_path / f"caches{number}")
        for name in KEPT:
            times = (5, 5) if name.startswith(archive._BUILT_BY_NINJA) else (number, number)
            os.utime(caches / name, ns=times)
        (caches / "vllm").chmod(0o700 if number == 1 else 0o750)
        assert bundle.save(str(tmp_path / f"location{number}"), KEY, caches)
        archives.append(_archive(tmp_path / f"location{number}").read_bytes())
    assert archives[0] == archives[1]


# ---- who comes first ----


def test_the_first_one_stays(location: Path, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundle.save(str(location), KEY, caches)
    before = _archive(location).read_bytes()
    (caches / "empty").write_bytes(b"another")
    monkeypatch.setattr(archive, "pack", lambda *_: pytest.fail("packed for nothing"))
    assert not bundle.save(str(location), KEY, caches)
    assert _archive(location).read_bytes() == before


def test_one_that_appears_while_another_is_packed_stays(
    location: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = archive.pack

    def slow(*arguments: Any) -> None:
        pack(*arguments)
        _archive(location).write_bytes(b"the first one's")

    monkeypatch.setattr(archive, "pack", slow)
    assert not bundle.save(str(location), KEY, caches)
    assert [(path.name, path.read_bytes()) for path in location.iterdir()] == [
        (f"{KEY}.tar.zst", b"the first one's")
    ]


def test_many_save_at_once(location: Path, caches: Path, root: Path) -> None:
    start = threading.Barrier(4)

    def save(_: int) -> bool:
        start.wait()
        return bundle.save(str(location), KEY, caches)

    with ThreadPoolExecutor(4) as pool:
        assert any(pool.map(save, range(4)))
    assert [path.name for path in location.iterdir()] == [f"{KEY}.tar.zst"]
    assert bundle.restore(str(location), KEY, root)
    assert _files(root) == KEPT


def test_many_restore_at_once(location: Path, caches: Path, root: Path) -> None:
    assert bundle.save(str(location), KEY, caches)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: bundle.restore(str(location), KEY, root), range(4))) == [True] * 4
    assert _files(root) == KEPT


def test_what_came_from_a_bundle_is_not_saved(location: Path, caches: Path, root: Path) -> None:
    assert bundle.save(str(location), KEY, caches)
    assert bundle.restore(str(location), KEY, root)
    _archive(location).unlink()
    assert not bundle.save(str(location), KEY, root)
    assert bundle.restore(str(location), KEY, root), "it is there already"


def test_a_nodes_own_caches_are_left_alone(location: Path, caches: Path, root: Path) -> None:
    assert bundle.save(str(location), KEY, caches)
    root.mkdir(parents=True)
    root.parent.chmod(0o700)
    (root / "own").write_text("mine")
    assert not bundle.restore(str(location), KEY, root)
    assert _files(root) == {"own": b"mine"}


def test_an_empty_folder_is_filled(location: Path, caches: Path, root: Path) -> None:
    assert bundle.save(str(location), KEY, caches)
    root.mkdir(parents=True)
    root.parent.chmod(0o700)
    assert bundle.restore(str(location), KEY, root)
    assert _files(root) == KEPT


def test_what_was_restored_before_the_machine_started_is_restored_again(
    location: Path, caches: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bundle.save(str(location), KEY, caches)
    assert bundle.restore(str(location), KEY, root)
    (root / "triton/KEY/__grp__kernel.json").write_bytes(b"")  # torn by a power cut
    monkeypatch.setattr(restoring, "boot_id", lambda: "another")
    assert bundle.restore(str(location), KEY, root)
    assert _files(root) == KEPT


def test_a_restore_that_was_killed_is_done_again(location: Path, caches: Path, root: Path) -> None:
    assert bundle.save(str(location), KEY, caches)
    left = root.with_name(f"{KEY}.partial") / "tree/vllm"
    left.mkdir(parents=True)
    root.parent.chmod(0o700)
    assert bundle.restore(str(location), KEY, root)
    assert _files(root) == KEPT
    assert not left.exists()


# ---- nothing there, nothing usable ----


def test_no_bundle(location: Path, root: Path, warnings: pytest.LogCaptureFixture) -> None:
    assert not bundle.restore(str(location), KEY, root)
    assert _nothing_written(root)
    assert _said(warnings) == []


def test_nothing_to_save(location: Path, tmp_path: Path) -> None:
    assert not bundle.save(str(location), KEY, tmp_path / "missing")
    assert not location.exists()


def test_a_location_that_is_a_file(
    location: Path, caches: Path, root: Path, warnings: pytest.LogCaptureFixture
) -> None:
    location.write_text("no folder")
    assert not bundle.save(str(location), KEY, caches)
    assert not bundle.restore(str(location), KEY, root)
    assert len(_said(warnings)) == 2
    assert location.read_text() == "no folder"


@pytest.mark.parametrize("key", ["", "../" + "a" * 61, KEY[:-1], KEY.upper(), f"{KEY}\n"])
def test_what_is_no_key(key: str, location: Path, caches: Path, root: Path) -> None:
    assert not bundle.save(str(location), key, caches)
    assert not bundle.restore(str(location), key, root)
    assert not location.exists()


def test_a_file_that_is_taken_away_while_saving(
    location: Path, caches: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = archive.names_in
    monkeypatch.setattr(archive, "names_in", lambda folder: [*names(folder), "vanished"])
    assert bundle.save(str(location), KEY, caches)
    assert bundle.restore(str(location), KEY, root)
    assert _files(root) == KEPT


def test_a_damaged_archive_is_refused(
    location: Path, caches: Path, root: Path, warnings: pytest.LogCaptureFixture
) -> None:
    assert bundle.save(str(location), KEY, caches)
    whole = _archive(location).read_bytes()
    damaged = [whole[:length] for length in (0, 1, 135, 136, 200, len(whole) // 2, len(whole) - 1)]
    for place in (
        0,
        40,
        len(whole) // 2,
        len(whole) - 137,
        len(whole) - 136,
        len(whole) - 100,
        len(whole) - 1,
    ):
        damaged.append(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    damaged.append(whole + b"\0")
    for number, content in enumerate(damaged, 1):
        _archive(location).write_bytes(content)
        assert not bundle.restore(str(location), KEY, root)
        assert _nothing_written(root)
        assert len(_said(warnings)) == number
    _archive(location).write_bytes(whole)
    assert bundle.restore(str(location), KEY, root)


def test_another_keys_bundle_is_refused(location: Path, caches: Path, root: Path) -> None:
    assert bundle.save(str(location), OTHER_KEY, caches)
    _archive(location, OTHER_KEY).rename(_archive(location))
    assert not bundle.restore(str(location), KEY, root)
    assert _nothing_written(root)


def test_what_is_no_tar_or_no_zstd(location: Path, root: Path) -> None:
    _publish(location, b"no tar" * 1000)
    assert not bundle.restore(str(location), KEY, root)
    plain = b"no zstd"
    digest = hashlib.sha256(plain).hexdigest()
    _archive(location).write_bytes(plain + archive.trailer_of(KEY, digest))
    assert not bundle.restore(str(location), KEY, root)
    assert _nothing_written(root)


@pytest.mark.parametrize(
    ("member", "content"),
    [
        (_member("../outside"), b"x"),
        (_member("a/../../outside"), b"x"),
        (_member("/tmp/dray-outside"), b"x"),
        (_member("./a"), b"x"),
        (_member("a//b"), b"x"),
        (_member(""), b"x"),
        (_member(".."), b"x"),
        (_member("nul\0", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (_member("link", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (_member("inside", tarfile.SYMTYPE, "ok"), b""),
        (_member("hard", tarfile.LNKTYPE, "ok"), b""),
        (_member("hard", tarfile.LNKTYPE, "/etc/passwd"), b""),
        (_member("device", tarfile.CHRTYPE), b""),
        (_member("device", tarfile.BLKTYPE), b""),
        (_member("pipe", tarfile.FIFOTYPE), b""),
        (_member("folder", tarfile.DIRTYPE), b""),
        (_member("sparse", tarfile.GNUTYPE_SPARSE), b""),
        (_member("ok"), b"a second time"),
        (_member("ok/below"), b"a file as a folder"),
    ],
)
def test_attacks_are_refused(
    member: tarfile.TarInfo, content: bytes, location: Path, root: Path, warnings: pytest.LogCaptureFixture
) -> None:
    _publish(location, _tar((_member("ok"), b"fine"), (member, content)))
    assert not bundle.restore(str(location), KEY, root)
    assert _nothing_written(root)
    assert not (root.parent.parent / "outside").exists()
    assert not Path("/tmp/dray-outside").exists()
    assert len(_said(warnings)) == 1


def test_a_link_is_never_a_way_out(location: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    way = _member("way", tarfile.SYMTYPE, str(tmp_path / "target"))
    _publish(location, _tar((way, b""), (_member("way/out"), b"x")))
    assert not bundle.restore(str(location), KEY, root)
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("time", ["soon", "9" * 40, "-" + "9" * 40])
def test_a_time_that_is_none(time: str, location: Path, root: Path) -> None:
    info = _member("a")
    info.pax_headers = {archive._TIME: time}
    _publish(location, _tar((info, b"x")))
    assert not bundle.restore(str(location), KEY, root)
    assert _nothing_written(root)


def test_a_bundle_that_is_too_large(
    location: Path, root: Path, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(archive, "LIMIT_BYTES", 1 << 20)
    _publish(location, _tar((_member("zeros"), bytes(2 << 20))))
    assert _archive(location).stat().st_size < 1 << 20
    assert not bundle.restore(str(location), KEY, root)
    _archive(location).write_bytes(bytes(2 << 20))
    assert not bundle.restore(str(location), KEY, root)
    assert _nothing_written(root)
    assert ["it unpacks to more" in said or "it has more" in said for said in _said(warnings)] == [True] * 2


def test_too_many_files(location: Path, caches: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundle.save(str(location), KEY, caches)
    monkeypatch.setattr(archive, "LIMIT_FILES", len(KEPT) - 1)
    assert not bundle.restore(str(location), KEY, root)
    assert not bundle.save(str(location), OTHER_KEY, caches)
    assert _nothing_written(root)
    assert not _archive(location, OTHER_KEY).exists()


def test_caches_that_are_too_large(location: Path, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LIMIT_BYTES", 1000)
    assert not bundle.save(str(location), KEY, caches)
    assert not location.exists()


def test_no_room_to_unpack(
    location: Path, caches: Path, root: Path, monkeypatch: pytest.MonkeyPatch, warnings: Any
) -> None:
    assert bundle.save(str(location), KEY, caches)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    assert not bundle.restore(str(location), KEY, root)
    assert _nothing_written(root)
    assert "No space left" in _said(warnings)[0]


def test_a_folder_that_others_can_write_to(
    location: Path, caches: Path, root: Path, warnings: pytest.LogCaptureFixture
) -> None:
    assert bundle.save(str(location), KEY, caches)
    root.parent.mkdir()
    root.parent.chmod(0o777)
    assert not bundle.restore(str(location), KEY, root)
    assert list(root.parent.iterdir()) == []
    assert "others can write" in _said(warnings)[0]


# ---- the key ----


def _key(**changed: Any) -> str:
    parts: dict[str, Any] = {
        "model_key": "m1",
        "versions": {"vllm": "0.32.0", "torch": "2.13.0"},
        "hardware": "NVIDIA H100 80GB HBM3, 9.0",
        "configuration": {"model": "/models/m", "max_model_len": 4096, "compilation_config": {"mode": 3}},
    }
    return bundle.bundle_key(**(parts | changed))


def test_the_key_changes_with_each_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = [
        _key(),
        _key(model_key="m2"),
        _key(versions={"vllm": "0.32.1", "torch": "2.13.0"}),
        _key(versions={"vllm": "0.32.0"}),
        _key(hardware="NVIDIA H200, 9.0"),
        _key(configuration={}),
        _key(configuration={"model": "/models/m", "max_model_len": 4096, "compilation_config": {"mode": 2}}),
        _key(configuration={"model": "/other/m", "max_model_len": 4096, "compilation_config": {"mode": 3}}),
    ]
    monkeypatch.setenv(bundle.FOLDER_VARIABLE, str(tmp_path))
    keys.append(_key())
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)


def test_the_key_does_not_change_with_the_order() -> None:
    configuration = {"compilation_config": {"mode": 3}, "max_model_len": 4096, "model": Path("/models/m")}
    assert _key(configuration=configuration, versions={"torch": "2.13.0", "vllm": "0.32.0"}) == _key()


def test_versions_and_hardware() -> None:
    versions, hardware = bundle.versions_and_hardware()
    import torch

    assert versions["torch"] == torch.__version__
    assert versions["cuda"] == (torch.version.cuda or torch.version.hip or "")
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert re.match(r"0\.\d+", versions["vllm"])
    assert hardware
    assert (versions, hardware) == bundle.versions_and_hardware()


def test_versions_need_no_import_of_vllm_or_torch() -> None:
    code = (
        "import sys; from dray.weights.bundle import versions_and_hardware as v; v(); "
        "print({'torch', 'vllm'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_the_cpu_is_named_with_its_instructions() -> None:
    said = json.loads(keys._cpu().partition(" ")[2])
    assert said.get("flags") or said.get("Features")


def test_the_gpu_is_the_first_visible_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "$1" > "$0.asked"\necho "NVIDIA H100 80GB HBM3, 9.0"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for visible, asked in (("GPU-1f2e,GPU-33", "GPU-1f2e"), ("3", "3"), ("", "0")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert keys._gpu() == "NVIDIA H100 80GB HBM3, 9.0"
        assert (tmp_path / "nvidia-smi.asked").read_text().strip() == f"--id={asked}"


def test_a_gpu_that_nobody_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    monkeypatch.setattr(keys, "_ASK_TORCH", "print('AMD Instinct MI300X, gfx942')")
    assert keys._gpu() == "AMD Instinct MI300X, gfx942"
    monkeypatch.setattr(keys, "_ASK_TORCH", "raise RuntimeError('no driver')")
    assert keys._gpu() == "unknown"


# ---- where the caches are ----


def test_the_environment_keeps_everything_below_one_folder(tmp_path: Path) -> None:
    environment = bundle.cache_environment(tmp_path)
    assert environment.pop("VLLM_ENABLE_STARTUP_PLAN") == "1"
    folders = {Path(folder).relative_to(tmp_path) for folder in environment.values()}
    assert len(folders) == len(environment), "one folder each"
    for prefix in archive._BUILT_BY_NINJA:
        assert Path(prefix) in folders
    for pattern in archive._NOT_SHARED:
        assert Path(pattern).parts[0] == Path(environment["VLLM_CACHE_ROOT"]).name


def test_the_folder_for_bundles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(bundle.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert bundle.bundle_root(KEY) == tmp_path / "dray/bundles" / KEY
    monkeypatch.setenv(bundle.FOLDER_VARIABLE, str(tmp_path / "elsewhere"))
    assert bundle.bundle_root(KEY) == tmp_path / "elsewhere" / KEY
