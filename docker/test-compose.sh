#!/usr/bin/env bash
# Run docker/compose.test.yaml to its end, and kill the learner three times on the way: it must come back, decide every
# event exactly once, and leave topics whose ledger adds up.
set -euo pipefail
cd "$(dirname "$0")/.."

events=${ONEBIT_TEST_EVENTS:-6000}
export ONEBIT_TEST_EVENTS=$events COMPOSE_ANSI=never COMPOSE_PROGRESS=plain
started_s=$SECONDS

say() { echo "test-compose [$((SECONDS - started_s)) s]: $*"; }
compose() { docker compose -f docker/compose.test.yaml "$@"; }
end() {
  local code=$?
  trap - EXIT INT TERM
  if ((code)); then
    say "FAILED with exit code $code; what the containers said last:"
    compose ps --all || true
    compose logs --no-color --tail 40 || true
  fi
  say "removing the containers, their network and their volume"
  compose down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1 || say "compose down failed"
  exit "$code"
}
fail() { say "$*"; exit 1; }

docker info >/dev/null || { echo "test-compose: no Docker engine answers; start one" >&2; exit 1; }
docker compose version >/dev/null || { echo "test-compose: needs Docker Compose v2 (docker compose)" >&2; exit 1; }
trap end EXIT
trap 'exit 130' INT TERM

compose down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1 || true # what an earlier run may have left
say "building the image"
compose build
say "starting Kafka, topics, learner, feedback, replay and verify: $events events"
compose up --detach --no-build

learner=$(compose ps --all --quiet learner)
verify=$(compose ps --all --quiet verify)
state() { docker inspect --format "{{.State.$2}}" "$1"; }

# The number of decisions, as verify says every few seconds while it waits.
decided() {
  local line
  line=$(docker logs "$verify" 2>&1 | grep -o 'decided [0-9,]*' | tail -1 || true)
  line=${line#decided }
  echo "${line//,/}"
}
wait_until_decided() {
  local now
  for _ in $(seq 120); do
    now=$(decided)
    if ((${now:-0} >= $1)); then return; fi
    [[ $(state "$verify" Running) == true ]] || fail "verify ended before $1 events were decided"
    sleep 1
  done
  fail "after 2 minutes ${now:-0} events are decided, not $1"
}
wait_until_running() { # a start later than $1
  for _ in $(seq 30); do
    if [[ $(state "$learner" Running) == true && $(state "$learner" StartedAt) != "$1" ]]; then return; fi
    sleep 1
  done
  fail "the learner did not come back within 30 s"
}

for kill in 1 2 3; do
  wait_until_decided $((events * (2 * kill - 1) / 8))
  before=$(state "$learner" StartedAt)
  if ((kill == 2)); then
    # From inside, as a crash would: the restart policy alone brings it back.
    compose exec -T learner sh -c 'kill -KILL $(cat /proc/1/task/1/children)'
    say "kill $kill: SIGKILL inside the container at $(decided) decisions; its restart policy is on"
  else
    # Docker takes `docker kill` for the operator's wish, and restarts nothing by itself.
    docker kill --signal KILL "$learner" >/dev/null
    say "kill $kill: docker kill -s KILL at $(decided) decisions, exit code $(state "$learner" ExitCode); starting it again"
    compose up --detach --no-build --no-deps learner
  fi
  wait_until_running "$before"
  say "the learner runs again"
done

say "waiting for verify"
code=$(timeout 300 docker wait "$verify") || fail "verify did not end within 5 minutes"
docker logs "$verify" 2>/dev/null # the ledger; progress went to stderr
((code == 0)) || fail "onebit verify ended with exit code $code"

say "counting the predictions with Kafka's own consumer, committed records only"
ids=$(compose exec -T kafka /opt/kafka/bin/kafka-console-consumer.sh --bootstrap-server kafka:19092 \
  --topic onebit.predictions --from-beginning --isolation-level read_committed --timeout-ms 8000 2>/dev/null |
  sed -n 's/^{"id":"\([^"]*\)".*/\1/p')
records=$(wc -l <<<"$ids")
distinct=$(sort -u <<<"$ids" | wc -l)
say "events $events, predictions $records, distinct ids $distinct, learner killed 3 times"
((records == events && distinct == events)) || fail "expected one prediction for each of $events events"
say "passed"
