#!/usr/bin/env bash
# The Python environment of this repository: .venv, from constraints.txt.
#
#   deployments/environment.sh install             make .venv, or bring it up to date
#   deployments/environment.sh wheel WHEEL FOLDER  make FOLDER, an environment of dray's wheel and vLLM alone
#   deployments/environment.sh pin                 resolve again to the newest versions that pyproject.toml allows
#   deployments/environment.sh pin-images          the same versions for deployments/images, with either engine
#
# PYTHON names the interpreter to start from (3.11 to 3.13; python3 when not given).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=.venv
extras=(cpu audio postgres dev bench)

main() {
    case "${1:-}:$#" in
        install:1 | wheel:3 | pin:1 | pin-images:1) ;;
        *) echo "usage: $0 install | wheel WHEEL FOLDER | pin | pin-images" >&2; exit 2 ;;
    esac
    check_system
    check_python
    make_venv
    find_torch
    follow_pip_settings
    case "$1" in
        install) install_project; check_libraries ;;
        wheel) install_wheel "$2" "$3" ;;
        pin) pin_versions ;;
        pin-images) pin_images ;;
    esac
}

check_system() {
    [ "$(uname -s)" = Linux ] || {
        echo "dray runs on Linux, and this is $(uname -s), for which vLLM's CPU build has no packages: use a container" \
            "or a virtual machine with Linux." >&2
        exit 2
    }
}

check_python() {
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || {
        echo "dray needs Python 3.11, 3.12 or 3.13, and '$python' is none. Name one: make PYTHON=/path/to/python3.11" >&2
        exit 2
    }
}

# Debian ships Python without ensurepip; its pip can serve the new environment just as well.
make_venv() {
    [ -x "$venv/bin/python" ] || "$python" -m venv --without-pip "$venv"
    "$venv/bin/python" -m uv --version >/dev/null 2>&1 ||
        with_pip --python "$venv/bin/python" install --quiet --constraint constraints.txt uv
}

# Since 22.3, pip installs into an environment that is not its own (--python).
with_pip() {
    local version
    version=$("$python" -c 'import pip; print(pip.__version__)' 2>/dev/null) || {
        echo "'$python' has no pip. On Debian and Ubuntu: apt install python3-pip. A virtual environment of uv has none" \
            "either: deactivate it, or name another Python: make PYTHON=/path/to/python3.11" >&2
        exit 2
    }
    [ "$(printf '%s\n' 22.3 "$version" | sort -V | head -n 1)" = 22.3 ] || {
        echo "'$python' has pip $version, and 22.3 or newer is needed: $python -m pip install --upgrade pip" >&2
        exit 2
    }
    "$python" -m pip "$@"
}

pip_setting() {
    local section
    for section in :env: install global; do
        "$python" -m pip config get "$section.$1" 2>/dev/null && return
    done
    return 0
}

# The CPU build of torch comes from the folder that pip finds links in, when that holds one for this Python, and from
# PyTorch's own index otherwise.
find_torch() {
    local links link torch
    links=$(pip_setting find-links)
    torch=$(grep '^torch==' constraints.txt)
    torch_source=(--torch-backend cpu)
    if [ -n "$links" ] && "$python" -m pip --python "$venv/bin/python" install --dry-run --quiet --no-index --no-deps \
        --ignore-installed "$torch" >/dev/null 2>&1; then
        torch_source=()
        for link in $links; do torch_source+=(--find-links "$link"); done
    fi
}

# uv does not read pip's configuration: a mirror or a certificate bundle set there would be ignored.
follow_pip_settings() {
    local index cert
    index=$(pip_setting index-url)
    cert=$(pip_setting cert)
    [ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
    [ -z "$cert" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$cert}"
}

# Of 35,000 modules a run imports a fifth: its first processes compile those, in less time than all would take.
install_project() {
    install_into "$venv/bin/python" --build-constraints constraints.txt \
        --editable ".[$(IFS=,; echo "${extras[*]}")]"
}

install_wheel() {
    "$python" -m venv --without-pip "$2"
    install_into "$2/bin/python" --quiet "$1[cpu]"
}

install_into() {
    "$venv/bin/python" -m uv pip install --python "$1" \
        --constraints constraints.txt --overrides deployments/overrides.txt "${torch_source[@]}" "${@:2}"
}

check_libraries() {
    "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || {
        echo "vLLM on CPU needs the system library libnuma.so.1, which is not here. On Debian: apt install libnuma1" >&2
        exit 1
    }
}

# Resolved for the oldest Python supported, whose small backports the newer ones do not ask for.
pin_versions() {
    local pins
    pins=$(resolved /dev/null "${extras[@]}")
    { grep '^#' constraints.txt; echo "$pins"; } > constraints.new
    mv constraints.new constraints.txt
    pin_images
}

# Images have the versions of this environment, but for what the engine's own build decides: Ray and Prefect must
# be the driver's.
pin_images() {
    local engine same
    same=$(mktemp)
    grep -vE '^(#|vllm|torch|triton|apache-tvm-ffi)' constraints.txt > "$same"
    for engine in cpu gpu; do
        resolved "$same" "$engine" audio postgres kubernetes > "deployments/images/$engine.new"
        mv "deployments/images/$engine.new" "deployments/images/$engine.txt"
    done
    rm "$same"
}

# resolved CONSTRAINTS EXTRA...: the pins, one on each line.
resolved() {
    local builds=("${torch_source[@]}" --overrides deployments/overrides.txt) wanted=("${@:2}")
    [ "$2" != gpu ] || builds=()   # the package index has the builds for CUDA, of torch and of what goes with it
    "$venv/bin/python" -m uv pip compile pyproject.toml "${wanted[@]/#/--extra=}" --quiet --upgrade \
        --constraints "$1" --python-version 3.11 "${builds[@]}" \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links
}

main "$@"
