#!/usr/bin/env bash
# Make ENVIRONMENT of the parts that tests.gpu.offline packed: unpack.sh PARTS ENVIRONMENT, in the repository's root.
# The archives are unpacked side by side; the machine's own python3 has PyTorch and the rest.
set -euo pipefail
parts=$1 environment=$2
site=$environment/site
mkdir -p "$site"
cat "$parts"/part? > "$environment/all"
offset=1 jobs=()
while read -r name size; do
    { tail -c "+$offset" "$environment/all" | head -c "$size" | xz -dc | tar -xf - -C "$site"; } ||
        { echo "$name is damaged, or a part is missing in $parts" >&2; exit 1; } &
    jobs+=($!)
    offset=$((offset + size))
done < "$parts/archives"
for job in "${jobs[@]}"; do wait "$job"; done
rm "$environment/all"
python3 -m venv --without-pip "$environment/venv"
version=$(python3 -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
own=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
printf '%s\n' "$site" "$PWD" "$own" > "$environment/venv/lib/python$version/site-packages/offline.pth"
printf '#!/bin/sh\nexec "%s/venv/bin/python" -m dray.cli "$@"\n' "$environment" > "$environment/venv/bin/dray"
chmod +x "$environment/venv/bin/dray"
# vLLM finds dray's loader of weights by its entry point; an installed dray has that from its wheel.
python3 - "$site" <<'END'
import sys, tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
folder = Path(sys.argv[1], f"dray-{project['version']}.dist-info")
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dray\nVersion: {project['version']}\n")
groups = project["entry-points"].items()
lines = [f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in ones.items()) for group, ones in groups]
(folder / "entry_points.txt").write_text("\n".join(lines))
END
"$environment/venv/bin/python" -m compileall -q -j 0 "$site" dray flows tasks blocks tests > /dev/null || true
"$environment/venv/bin/python" -c 'import prefect, ray, torch, vllm; print(prefect.__version__, ray.__version__, torch.__version__, vllm.__version__)'
