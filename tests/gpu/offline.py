"""Carry vLLM, Ray, Prefect and all that dray needs to a GPU machine without a network, in parts.

Here, with the names of the packages that the machine has (its PyTorch among them), one a line::

    .venv/bin/python -m tests.gpu.offline PARTS --present names.txt

There, in a copy of this repository, once all parts are in one folder::

    bash tests/gpu/unpack.sh PARTS /tmp/dray
    bash tests/gpu/run.sh /tmp/dray turns|whole|tests SECONDS RESULTS

vLLM's extensions use PyTorch's stable interface, so its wheel runs over the PyTorch that is there. What no
test needs is left out: kernels for experts and for older GPUs, CUDA's own libraries, pages of web interfaces.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKED = ROOT / "deployments/images/gpu.txt"
PYTHON = "3.12"
PLATFORM = "x86_64-manylinux_2_39"
PART_BYTES = 50_500_000
GROUPS = ("ray", "vllm")
"""Folders with an archive of their own, which are packed and unpacked beside the rest."""

_MACHINES_OWN = re.compile(  # PyTorch and what goes with it
    r"(nvidia-|cuda-|torch|triton|nccl|numpy|scipy|pandas|pyarrow|numba|llvmlite|transformers|tokenizers)"
)
_UNUSED = re.compile(
    r"(flashinfer|fastsafetensors|instanttensor|tilelang|tokenspeed|humming|quack|cutlass|nvtx|kubernetes$"
    r"|docker$|amplitude|z3-solver|pynvvideocodec|sentry|anthropic)"
)
_PRUNED = (
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
    "vllm/vllm-rs",
    "vllm/_moe_C_stable_libtorch.abi3.so",
    "vllm/third_party/deep_gemm",
    "vllm/third_party/fmha_sm100",
    "ray/rllib",
    "ray/jars",
    "ray/dashboard/client",
    "pycountry/locales",
    "prefect/server/ui/assets",
    "prefect/server/ui-v2/assets",
    "mistral_common/data/tekken_240718.json",
)


def main() -> None:
    """Install, prune, pack and split."""
    arguments = parse()
    folder: Path = arguments.folder
    site = folder / "site"
    _make_room(folder)
    wanted = folder / "wanted.txt"
    wanted.write_text("\n".join(_missing(_names(arguments.present))) + "\n")
    _install(wanted, site)
    _prune(site)
    parts = _split(_packed(site, folder), folder)
    shutil.rmtree(site)
    print(f"{len(parts)} parts of at most {PART_BYTES:,} bytes in {folder}")


def parse() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a new one, or one of an earlier run, which is replaced")
    parser.add_argument("--present", type=Path, required=True, help="names of what is installed there")
    return parser.parse_args()


def _make_room(folder: Path) -> None:
    """An empty folder; only what an earlier run wrote is deleted.

    Raises:
        SystemExit: the folder holds something else.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "wanted.txt").is_file():
        raise SystemExit(f"{folder} holds other files, which would be deleted: name a new folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _names(path: Path) -> set[str]:
    """Their normalised names, without versions."""
    words = re.split(r"[\s,]+", path.read_text())
    return {_normal(re.split(r"[=<>~]", word)[0]) for word in words if word}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _missing(present: set[str]) -> Iterator[str]:
    for line in LOCKED.read_text().splitlines():
        name = _normal(line.partition("==")[0].strip())
        if name and name not in present and not _MACHINES_OWN.match(name) and not _UNUSED.search(name):
            yield line.strip()


def _install(wanted: Path, site: Path) -> None:
    command: list[str | Path] = [
        sys.executable, "-m", "uv", "pip", "install", "--target", site, "--python-version", PYTHON,
        "--python-platform", PLATFORM, "--no-deps", "--only-binary", ":all:", "--link-mode", "copy",
        "-r", wanted,
    ]  # fmt: skip
    subprocess.run(command, check=True)


def _prune(site: Path) -> None:
    for pruned in _PRUNED:
        path = site / pruned
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for found in [*site.rglob("*.map"), *site.rglob("__pycache__")]:
        shutil.rmtree(found) if found.is_dir() else found.unlink()


def _packed(site: Path, folder: Path) -> list[Path]:
    """An archive for each group and for the rest, made side by side."""
    excluded = [f"--exclude=./{name}" for name in GROUPS]
    contents = {name: [f"./{name}"] for name in GROUPS} | {"rest": [*excluded, "."]}
    jobs = {}
    for name, what in contents.items():
        archive = folder / f"{name}.tar.xz"
        command: list[str | Path] = ["tar", "--use-compress-program=xz -4", "-cf", archive, "-C", site, *what]
        jobs[archive] = subprocess.Popen(command)
    for archive, job in jobs.items():
        if job.wait() != 0:
            raise SystemExit(f"tar could not write {archive}")
    return list(jobs)


def _split(archives: list[Path], folder: Path) -> list[Path]:
    """One stream of all archives behind each other, in parts, and a list of the archives' sizes."""
    sizes = [f"{archive.name} {archive.stat().st_size}" for archive in archives]
    (folder / "archives").write_text("\n".join(sizes) + "\n")
    with subprocess.Popen(["cat", *archives], stdout=subprocess.PIPE) as stream:
        split: list[str | Path] = ["split", "-b", str(PART_BYTES), "-d", "-a", "1", "-", folder / "part"]
        subprocess.run(split, stdin=stream.stdout, check=True)
    for archive in archives:
        archive.unlink()
    return sorted(folder.glob("part?"))


if __name__ == "__main__":
    main()
