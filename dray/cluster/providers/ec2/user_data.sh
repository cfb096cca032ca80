#!/bin/bash
# dray: make this machine a node of a Ray cluster. Holds no secret: token and variables come from the parameter store.
# What it has to say goes to the console, each line with "dray:" in front: the driver reads it there.
set -u
CLUSTER='@CLUSTER@' ROLE='@ROLE@' REGION='@REGION@' HEAD='@HEAD@' PORT='@PORT@'
PYTHON='@PYTHON@' RAY_WANTED='@RAY@' PYTHON_WANTED='@PYTHON_VERSION@' MARKET='@MARKET@'
LIFETIME='@LIFETIME@' JOIN_SECONDS='@JOIN_SECONDS@' ENDPOINT='@ENDPOINT@' PARAMETERS='@PARAMETERS@'
METADATA="${DRAY_METADATA:-http://169.254.169.254}" CONSOLE="${DRAY_CONSOLE:-/dev/console}"
TURN_OFF="${DRAY_TURN_OFF:-shutdown -h now}" LOOK="${DRAY_LOOK_SECONDS:-30}" STAY="${DRAY_STAY_SECONDS:-300}"
BOOT="${DRAY_BOOT:-/var/lib/cloud}/scripts/per-boot" INSTANCE="${DRAY_BOOT:-/var/lib/cloud}/data/instance-id"

say() { echo "dray: $*" | tee -a "$CONSOLE" >&2; }
# A worker that is of no use ends itself, once the driver has had time to read why.
fail() {
  say "$*"
  [ "$ROLE" = head ] || (sleep "$STAY"; $TURN_OFF) </dev/null >/dev/null 2>&1 &
  exit 1
}
metadata() {
  local token
  token=$(curl -sf -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$METADATA/latest/api/token") &&
    curl -sf -m 5 -H "X-aws-ec2-metadata-token: $token" "$METADATA/latest/meta-data/$1"
}

# The machine ends itself when its tag says so, also when the driver that made it cannot release it any more.
expire() {
  local until now said
  until=$(($(date +%s) + LIFETIME))
  while :; do
    said=$(metadata tags/instance/dray-expires) && [ -n "$said" ] && until=$said
    now=$(date +%s)
    if [ "$now" -ge "$until" ]; then
      say "expired: this machine ends itself"
      $TURN_OFF
      return
    fi
    sleep "$LOOK"
  done
}
expire </dev/null >/dev/null 2>&1 &

# After a reboot nothing of this runs: no watch for the expiry, and no Ray. cloud-init runs the scripts of this folder at
# each boot, at the first one before this: from the second one on, the machine ends itself. A machine that is made of an
# image of this one has another id, and stays.
if [ -d "$BOOT" ] && instance=$(metadata instance-id); then
  printf '#!/bin/sh\n[ "$(cat %s)" != %s ] || %s\n' "$INSTANCE" "$instance" "$TURN_OFF" >"$BOOT/dray"
  chmod 755 "$BOOT/dray"
fi

[ -x "$PYTHON" ] || fail "the image has no $PYTHON"
found=$("$PYTHON" -c 'import ray, sys; print(ray.__version__, "%d.%d" % sys.version_info[:2])') ||
  fail "the Python of the image, $PYTHON, cannot import Ray"
[ "$found" = "$RAY_WANTED $PYTHON_WANTED" ] ||
  fail "the image has Ray and Python ${found/ / and }, and the driver $RAY_WANTED and $PYTHON_WANTED: they must be the same"

PATH="$(dirname "$PYTHON"):$PATH" # FlashInfer calls the ninja of this environment by its name
export PATH RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 HOME="${HOME:-/root}"
export AWS_REGION="$REGION" AWS_DEFAULT_REGION="$REGION" # for S3: what is not in us-east-1 is not found without
# RAY_AUTH_TOKEN, and the variables that the settings name: each is a parameter.
variables=$("$PYTHON" - "$REGION" "$ENDPOINT" "$PARAMETERS" <<'PYTHON'
import json
import shlex
import sys
import boto3

region, endpoint, wanted = sys.argv[1:]
ssm = boto3.client("ssm", region_name=region, endpoint_url=endpoint or None)
exports = []  # told whole, or not at all: what is told of a failure goes to the console
for name, parameter in json.loads(wanted).items():
    try:
        value = ssm.get_parameter(Name=parameter, WithDecryption=True)["Parameter"]["Value"]
    except Exception as error:
        code = getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__)
        print(f"{name} from the parameter {parameter} ({code})")
        sys.exit(1)
    exports.append(f"export {name}={shlex.quote(value)}")
print("\n".join(exports))
PYTHON
) || fail "could not read ${variables:-the parameters}: the instance profile needs ssm:GetParameter on it"
eval "$variables"
(umask 077; mkdir -p "$HOME/.ray" && printf %s "$RAY_AUTH_TOKEN" >"$HOME/.ray/auth_token")  # for jobs on the head

ADDRESS=$(metadata local-ipv4) || fail "the metadata service does not answer"
ray_start() { "$PYTHON" -m ray.scripts.scripts start --disable-usage-stats --node-ip-address="$ADDRESS" "$@" 2>&1; }
if [ "$ROLE" = head ]; then
  # Shard tasks run here, and no engine: without processors, Ray puts no replica on it.
  output=$(ray_start --head --port="$PORT" --num-cpus=0 --num-gpus=0 --resources='{"dray_stable": 1}' \
    --dashboard-host=127.0.0.1 ${DRAY_RAY_START:-}) || fail "ray start failed: $(tail -n 3 <<<"$output" | tr '\n' ' ')"
else
  until=$(($(date +%s) + JOIN_SECONDS))
  until (exec 3<>"/dev/tcp/$HEAD/$PORT") 2>/dev/null; do # Ray's own wait for a head that boots is slow
    [ "$(date +%s)" -lt "$until" ] || fail "the head at $HEAD:$PORT takes no connection"
    sleep 1
  done
  LABELS="ray.io/market-type=$MARKET,dray/instance-type=$(metadata instance-type)" # by which the bill has a price
  until output=$(ray_start --address="$HEAD:$PORT" --labels="$LABELS" ${DRAY_RAY_START:-}); do
    [ "$(date +%s)" -lt "$until" ] || fail "did not join $HEAD:$PORT: $(tail -n 3 <<<"$output" | tr '\n' ' ')"
    sleep 5
  done
fi
say "$ROLE of $CLUSTER is up at $ADDRESS"

# A worker without its Ray daemon takes no replica any more: the driver gets another machine in its place.
[ "$ROLE" = head ] || ! command -v pgrep >/dev/null || (
  while pgrep -f "raylet/raylet .*--node_ip_address=$ADDRESS( |\$)" >/dev/null; do sleep "$LOOK"; done
  say "its Ray daemon ended: this machine ends itself"
  $TURN_OFF
) </dev/null >/dev/null 2>&1 &
