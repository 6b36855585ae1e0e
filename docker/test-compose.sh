#!/usr/bin/env bash
# Run docker/compose.test.yaml to its end, and kill the learner three times. The learner must recover and decide every
# event exactly once, and the ledger must balance.
# Then run docker/compose.yaml as users do, in three ways:
# - unchanged: the verdict must be the last line, and Kafka's log must not be printed;
# - with a secured Kafka;
# - without replay and feedback, for examples/own_service.py with the monitor and Prometheus.
# Last, run docker/compose.personalizer.yaml: it must answer a first request within two minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
test_name=test-compose
export COMPOSE_FILE=docker/compose.test.yaml
logs_of="" # all services
. docker/under-test.sh

events=${ONEBIT_TEST_EVENTS:-6000}
image=${ONEBIT_IMAGE:-onebit}
kafka_image=${ONEBIT_KAFKA_IMAGE:-apache/kafka:4.1.1}
client=${ONEBIT_CLIENT:-auto}
port=${ONEBIT_KAFKA_PORT:-19192} # avoids conflicts with another Kafka
prometheus_image=${ONEBIT_PROMETHEUS_IMAGE:-prom/prometheus:v2.42.0}
unset "${!ONEBIT_@}" # for reproducible runs
export ONEBIT_TEST_EVENTS=$events ONEBIT_IMAGE=$image ONEBIT_KAFKA_IMAGE=$kafka_image ONEBIT_KAFKA_PORT=$port
export ONEBIT_PROMETHEUS_IMAGE=$prometheus_image ONEBIT_CLIENT=$client

begin
say "building the image"
compose build
megabytes=$(docker history --human=false --no-trunc --format '{{.Size}} {{.CreatedBy}}' "$image" |
  awk '/onebit/ {bytes += $1} END {print int(bytes / 1000000)}') # the commands of the layers above the base contain "onebit"
say "image: $megabytes MB above its base; running it read-only, with and without writable directories"
((megabytes <= 450)) || fail "the image has $megabytes MB above its base; expected at most 450"
closed() { docker run --rm --read-only --cap-drop ALL --security-opt no-new-privileges "$@" 2>&1; }
closed --entrypoint python "$image" -c '
from pathlib import Path
from stream.learners.kernels import CACHE_DIRECTORY
assert CACHE_DIRECTORY and any(Path(CACHE_DIRECTORY).iterdir()), f"no compiled kernels in {CACHE_DIRECTORY!r}"
' || fail "the kernels compiled in the image are not found"
closed --entrypoint python "$image" -c '
import json
from importlib.metadata import version
listed = {(part["name"], part["version"]) for part in json.load(open("/opt/onebit/sbom.cdx.json"))["components"]}
missing = {(name, version(name)) for name in ("onebit", "numpy", "confluent-kafka", "uvicorn")} - listed
assert not missing, f"the SBOM lacks {missing}"
' || fail "the SBOM in the image is incomplete"
closed "$image" run --learner late-ucb --events 200 --no-report || fail "the image does not run without a mounted directory"
said=$(closed --user 12345 "$image" run --learner late-ucb --events 200 --no-report) || fail "the image does not run without a writable directory: $said"
grep -q "not cached" <<<"$said" || fail "the missing cache directory is not reported: $said"
say "starting Kafka, topics, learner, feedback, replay and verify: $events events"
compose up --detach --no-build

learner=$(compose ps --all --quiet learner)
watcher=$(compose ps --all --quiet verify)
wait_until_running() { # wait for a start later than $1
  for _ in $(seq 30); do
    if [[ $(state "$learner" Running) == true && $(state "$learner" StartedAt) != "$1" ]]; then return; fi
    sleep 1
  done
  fail "the learner did not restart within 30 s"
}

for kill in 1 2 3; do
  wait_until_decided $((events * (2 * kill - 1) / 8))
  before=$(state "$learner" StartedAt)
  if ((kill == 2)); then
    # Kill it from inside, like a crash, so that the restart policy restarts it.
    compose exec -T learner sh -c 'kill -KILL $(cat /proc/1/task/1/children)'
    say "kill $kill: SIGKILL inside the container at $(decided) decisions; the restart policy applies"
  else
    # Docker treats `docker kill` as an operator action and does not restart.
    docker kill --signal KILL "$learner" >/dev/null
    say "kill $kill: docker kill -s KILL at $(decided) decisions, exit code $(state "$learner" ExitCode); starting it again"
    compose up --detach --no-build --no-deps learner
  fi
  wait_until_running "$before"
  wait_until_healthy "$learner"
  say "the learner has its partitions again"
done

say "waiting for verify"
code=$(timeout 300 docker wait "$watcher") || fail "verify did not end within 5 minutes"
docker logs "$watcher" 2>/dev/null # the ledgers and the verdict; progress is on stderr
((code == 0)) || fail "onebit verify ended with exit code $code"
expect_one_prediction_each "$events" kafka kafka:19092
remove

export COMPOSE_FILE=docker/compose.yaml
export COMPOSE_PROJECT_NAME=onebit-test # separate from the user's own runs
log=$(mktemp)
say "running docker compose up, as users do"
ONEBIT_EVENTS=1000 docker compose up --no-build >"$log" 2>&1 & # not in a function, so that it can be signalled
up=$!
for _ in $(seq 240); do
  if grep -q '^verify-1 .*the ledger' "$log"; then break; fi
  sleep 1
done
kill -INT "$up"
wait "$up" || true
grep '^verify-1' "$log" | tail -1
grep -q '^verify-1 .*✓ the ledger adds up in 1 partition; error [0-9.]*%, last fifth' "$log" || { cat "$log"; fail "the output contains no verdict"; }
first=$(grep -n -m1 '^learner-1 ' "$log" | cut -d: -f1)
say "the learner's first line is line $first of the output; Kafka's own log has $(compose logs --no-log-prefix kafka | wc -l) lines"
((first < 60)) || { head -100 "$log"; fail "too many lines are printed before the learner's first line"; }
if grep -q '^kafka-1 ' "$log"; then fail "the output contains Kafka's log"; fi
(($(compose logs --no-log-prefix kafka | wc -l) > 100)) || fail "Kafka's log is not available"
rm "$log"
remove

export COMPOSE_FILE=docker/compose.yaml:docker/compose.secure.yaml
say "running docker compose up with a secured Kafka"
compose build --quiet certificates
ONEBIT_EVENTS=300 ONEBIT_DELAY=exponential:200ms ONEBIT_WINDOW=2s timeout 180 \
  docker compose run --rm -T verify 2>/dev/null | tail -1 || fail "onebit verify ended with exit code $?"
password=$(compose exec -T learner sed -n 's/^sasl.password=//p' /security/client.properties)
((${#password} >= 32)) || fail "the programs have no password"
shown=$(compose logs 2>&1; compose ps --all --quiet | xargs docker inspect; compose top)
if grep -qF -- "$password" <<<"$shown"; then fail "the programs' password appears in logs, docker inspect or ps"; fi
remove

export COMPOSE_FILE=docker/compose.yaml
say "testing the alert rules"
rules() { docker run --rm --volume "$PWD/docker/prometheus:/etc/prometheus:ro" --entrypoint promtool "$prometheus_image" "$@"; }
rules test rules /etc/prometheus/alerts.test.yml
rules check config /etc/prometheus/prometheus.yml >/dev/null

export ONEBIT_TOPIC_PREFIX=own. ONEBIT_N_CLASSES=3 ONEBIT_N_FEATURES=4 ONEBIT_LEARNER=banditron ONEBIT_WINDOW=5s
export COMPOSE_PROFILES=monitoring ONEBIT_MONITOR_PORT=$((port + 1)) ONEBIT_PROMETHEUS_PORT=$((port + 2))
say "starting Kafka, topics and a learner for examples/own_service.py, with the monitor and Prometheus"
compose up --no-build --detach --wait --wait-timeout 120 kafka topics learner monitor prometheus
[[ $(state "$(compose ps --quiet learner)" Health.Status) == healthy ]] || fail "--wait returned before the learner was healthy"
own_service() { # DOCKER-RUN-ARGUMENTS...
  docker run --rm --env ONEBIT_TOPIC_PREFIX --volume "$PWD/examples:/examples:ro" --entrypoint python "$@" "$ONEBIT_IMAGE" /examples/own_service.py
}
say "running own_service.py in a container, and on this machine"
own_service --network "${COMPOSE_PROJECT_NAME}_default" --env ONEBIT_BOOTSTRAP=kafka:19092
own_service --network host --env ONEBIT_BOOTSTRAP="localhost:$port"
compose run --rm --no-deps -T verify verify --wait-events 600 --timeout 1m 2>/dev/null | tail -1

ask() { # PROMQL: print the value that Prometheus returns
  python3 -c 'import json, sys, urllib.parse, urllib.request as r
found = json.load(r.urlopen(sys.argv[1] + urllib.parse.quote(sys.argv[2]), timeout=10))["data"]["result"]
print(found[0]["value"][1] if found else "nothing")' "http://127.0.0.1:$ONEBIT_PROMETHEUS_PORT/api/v1/query?query=" "$1"
}
expect() { # PROMQL VALUE; retries for 20 s, which is several scrapes
  local found
  for _ in $(seq 20); do
    found=$(ask "$1")
    if [[ $found == "$2" ]]; then return; fi
    sleep 1
  done
  fail "Prometheus returned $found for $1; expected $2"
}
say "querying Prometheus"
for job in learner monitor; do
  expect "sum(onebit_decisions_total{job=\"$job\"})" 600
  expect "sum(onebit_settled_total{job=\"$job\",outcome=\"matched\"})" 600
  expect "min(onebit_ledger_balanced{job=\"$job\"})" 1
done
expect "sum(onebit_ready)" 2
expect "max(onebit_stuck)" 0
expect "count(ALERTS) or vector(0)" 0
remove

unset ONEBIT_TOPIC_PREFIX ONEBIT_N_CLASSES ONEBIT_N_FEATURES ONEBIT_LEARNER ONEBIT_WINDOW COMPOSE_PROFILES
export COMPOSE_FILE=docker/compose.personalizer.yaml ONEBIT_SERVE_TOKEN=key-of-the-clients ONEBIT_HTTP_PORT=$((port + 3))
say "starting a pipeline for Personalizer's clients"
begun_s=$SECONDS
compose up --no-build --detach --wait --wait-timeout 120
personalizer() { # PATH JSON: print the response
  python3 -c 'import sys, urllib.request as r
headers = {"Content-Type": "application/json", "Ocp-Apim-Subscription-Key": sys.argv[1]}
print(r.urlopen(r.Request(sys.argv[2], sys.argv[3].encode(), headers), timeout=10).read().decode())' \
    "$ONEBIT_SERVE_TOKEN" "http://127.0.0.1:$ONEBIT_HTTP_PORT/personalizer/v1.0/$1" "$2"
}
ranked=$(personalizer rank '{"eventId": "visit-1", "contextFeatures": [{"time": "Morning"}], "actions": [
  {"id": "News", "features": [{"type": "News"}]}, {"id": "Sports", "features": [{"type": "Sports"}]}]}')
say "the first answer, $((SECONDS - begun_s)) s after the start: $ranked"
grep -Eq '"rewardActionId":"(News|Sports)"' <<<"$ranked" || fail "the response contains no action"
((SECONDS - begun_s <= 120)) || fail "expected the first answer within 120 s"
personalizer events/visit-1/reward '{"value": 0.5}' >/dev/null
compose run --rm --no-deps -T serve verify --wait-events 1 --timeout 1m 2>/dev/null | tail -1
say "passed"
