#!/usr/bin/env bash
# dray, its engine and all that they need, in /opt/dray: of a container (Dockerfile), or of a machine's image.
#
#   install.sh all [SOURCE]    everything, from a checkout (this one when not given)
#   install.sh layers FOLDER   the pinned packages alone, a folder for each layer of a container
#   install.sh dray SOURCE FOLDER   dray alone
#
# ENGINE=gpu (the default) takes vLLM as it is published, with the CUDA that it names; ENGINE=cpu the build for
# processors. PYTHON names the interpreter, of the same minor version as the driver's. uv is on the PATH.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=/opt/dray
engine=${ENGINE:-gpu}

# Bytecode is made here, and is valid whatever time a file has: nodes read no source, and compile nothing. Python
# writes sets in the order of their hashes: without a seed each build would give other bytes.
export UV_COMPILE_BYTECODE=1 PYC_INVALIDATION_MODE=UNCHECKED_HASH PYTHONHASHSEED=0 UV_LINK_MODE=copy

# From what changes least to what changes most; a package is in the first layer whose pattern its pin matches.
layers=(cuda-math cuda torch kernels data libraries vllm)
declare -A patterns=(
    [cuda-math]='^nvidia-(cublas|cufft|cusolver|cusparse|curand)'
    [cuda]='^(nvidia|cuda)-'
    [torch]='^torch'
    [kernels]='^(triton|tokenspeed|flashinfer|tilelang|apache-tvm|tvm|quack)'
    [data]='^(ray|pyarrow|llvmlite|numba|numpy|pandas|scipy|sympy|opencv-python-headless)=='
    [libraries]='^([^v]|v[^l])'
    [vllm]='^vllm'
)

main() {
    case "${1:-}:$#" in
        all:1 | all:2) all "${2:-$here/../..}" ;;
        layers:2) environment; layered "$2" ;;
        dray:3) environment; project "$2" "$3" ;;
        *) sed -n '4,6s/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    esac
}

all() {
    compilers
    environment
    [ "$engine" != gpu ] || headers
    into "$root" --requirements "$here/$engine.txt"
    project "$1" "$root"
}

environment() {
    [ -x "$root/bin/python" ] || uv venv --quiet --python "${PYTHON:-python3}" "$root"
}

# A machine's image has them from its distribution; the container's are in its Dockerfile.
compilers() {
    local name
    [ "$engine" = gpu ] || return 0
    for name in gcc g++; do
        command -v "$name" >/dev/null || missing "$name" "install the distribution's g++ (gcc-c++ of dnf)"
    done
}

headers() {
    local folder
    folder=$("$root/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$folder/Python.h" ] || missing "$folder/Python.h" "install Python's headers, as python3.11-dev (python3.11-devel of dnf)"
}

missing() {
    echo "install.sh: there is no $1, with which Triton and FlashInfer compile on a node; $2" >&2
    exit 1
}

layered() {
    local left chosen layer
    left=$(mktemp)
    chosen=$(mktemp)
    cp "$here/$engine.txt" "$left"
    for layer in "${layers[@]}"; do
        mkdir -p "$1/$layer"
        grep -E "${patterns[$layer]}" "$left" >"$chosen" || continue
        grep -vE "${patterns[$layer]}" "$left" >"$left.more" || true
        mv "$left.more" "$left"
        into "$1/$layer" --requirements "$chosen"
    done
    [ ! -s "$left" ] || { echo "install.sh: in no layer: $(cat "$left")" >&2; exit 1; }
    rm "$left" "$chosen"
}

project() {
    local wheels
    wheels=$(mktemp -d)
    uv build --quiet --wheel --build-constraints "$1/constraints.txt" --out-dir "$wheels" "$1"
    into "$2" "$wheels"/*.whl
    rm -r "$wheels"
}

# What packages ask for is among the pins, so nothing is resolved. One time for all files: a layer that is built
# again, on any machine, is the same bytes, and nodes that have it do not load it again.
into() {
    local torch=()
    # PyTorch's own index has the build without CUDA, unless a folder is given that has it.
    [ "$engine" != cpu ] || [ -n "${UV_FIND_LINKS:-}" ] || torch=(--torch-backend cpu)
    uv pip install --quiet --no-deps --python "$root/bin/python" --prefix "$1" "${torch[@]}" "${@:2}"
    find "$1" -exec touch --no-dereference --date @0 {} +
}

main "$@"
