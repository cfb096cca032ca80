#!/usr/bin/env bash
# Make ENVIRONMENT of the parts that tests.gpu.offline packed: unpack.sh PARTS ENVIRONMENT, in the repository's root.
# The archives are unpacked side by side; the machine's own python3 has PyTorch and the rest.
set -euo pipefail
parts=$1 environment=$2
site=$environment/site
mkdir -p "$site"
cat "$parts"/part? > "$environment/all"
offset=1
while read -r name size; do
    tail -c "+$offset" "$environment/all" | head -c "$size" | xz -dc | tar -xf - -C "$site" ||
        echo "$name is damaged, or a part is missing in $parts" >&2 &
    offset=$((offset + size))
done < "$parts/archives"
wait
rm "$environment/all"
python3 -m venv --without-pip "$environment/venv"
version=$(python3 -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
own=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
printf '%s\n' "$site" "$PWD" "$own" > "$environment/venv/lib/python$version/site-packages/offline.pth"
printf '#!/bin/sh\nexec "%s/venv/bin/python" -m dray.cli "$@"\n' "$environment" > "$environment/venv/bin/dray"
chmod +x "$environment/venv/bin/dray"
# vLLM finds dray's loader of weights by this; an installed dray has it from its wheel.
mkdir -p "$site/dray-0.1.0.dist-info"
printf 'Metadata-Version: 2.1\nName: dray\nVersion: 0.1.0\n' > "$site/dray-0.1.0.dist-info/METADATA"
printf '[vllm.general_plugins]\ndray = dray.weights.loading.vllm_loader:register\n' > "$site/dray-0.1.0.dist-info/entry_points.txt"
"$environment/venv/bin/python" -m compileall -q -j 0 "$site" dray flows tasks blocks tests > /dev/null || true
"$environment/venv/bin/python" -c 'import prefect, ray, torch, vllm; print(prefect.__version__, ray.__version__, torch.__version__, vllm.__version__)'
