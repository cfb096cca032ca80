#!/usr/bin/env bash
# What a GPU is asked: run.sh ENVIRONMENT turns|whole|tests SECONDS RESULTS, in the repository's root.
#   turns  engines of both shapes beside each other, the core inside and apart: three rounds (6 minutes)
#   whole  whole jobs: dray with one replica and with two on the GPU, and vLLM's batch runner (5 minutes)
#   tests  the GPU's tests, and the engine's integration tests on the GPU, side by side (5 minutes)
# Results, logs and what nvidia-smi says each second go into RESULTS. After SECONDS it is interrupted, and tells what
# it has.
set -euo pipefail
environment=$1 what=$2 seconds=$3 results=$4
export PATH=$environment/venv/bin:$PATH
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 TORCHINDUCTOR_COMPILE_THREADS=4
export VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_USE_DEEP_GEMM=0  # not among what was carried
mkdir -p "$results"
nvidia-smi --query-gpu=timestamp,utilization.gpu,power.draw,memory.used --format=csv,noheader -l 1 > "$results/$what-gpu.csv" &
trap 'kill %1' EXIT

bench() {
    timeout --foreground --signal INT --kill-after 30 "$seconds" python -m tests.benchmarks.gpu --json "$results/$what.json" \
        --timeout 240 --engine-arg 'kernel_config={"enable_jit_warmup": false}' "$@" 2>&1 | tee "$results/$what.txt"
}

case $what in
turns)
    bench --together --rows 1b=3000 8b=1200 --only 1b:limit replica replica-inside --logs "$results/logs" || true
    tar -czf "$results/logs.tgz" -C "$results" logs && rm -r "$results/logs"
    ;;
whole)
    bench --rows 1b=8000 8b=2000 --only dray 1b:dray-halves 1b:run-batch --whole plain || true
    ;;
tests)
    timeout --foreground --signal INT --kill-after 30 "$seconds" python -m pytest tests/gpu tests/integration/engine \
        -n 15 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --chaos-rounds 5 \
        --durations 40 -rA > "$results/tests.txt" 2>&1 || true
    grep -E '^(FAILED|ERROR) |passed|failed' "$results/tests.txt" | cut -c1-300
    ;;
esac
