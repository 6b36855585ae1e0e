#!/usr/bin/env bash
# Run docker/compose.cluster.yaml, three brokers and two learners, with a finite stream. Kill one broker after another,
# and cut one learner off the network for longer than its session. Every event must be decided exactly once, the books
# must be exact, and the model that of the journal.
set -euo pipefail
cd "$(dirname "$0")/.."

events=${ONEBIT_TEST_EVENTS:-14000}
rate=${ONEBIT_TEST_RATE:-60}
image=${ONEBIT_IMAGE:-onebit}
kafka_image=${ONEBIT_KAFKA_IMAGE:-apache/kafka:4.1.1}
unset "${!ONEBIT_@}" # so that this run is always the same
export ONEBIT_IMAGE=$image ONEBIT_KAFKA_IMAGE=$kafka_image ONEBIT_EVENTS=$events ONEBIT_RATE=$rate ONEBIT_SHUFFLE=true ONEBIT_SEED=7
export ONEBIT_DELAY=lognormal:500ms,1.0 ONEBIT_WINDOW=20s ONEBIT_SESSION_TIMEOUT=6s ONEBIT_TRANSACTION_TIMEOUT=15s
export ONEBIT_KAFKA_HEAP="-Xms128m -Xmx384m" COMPOSE_ANSI=never COMPOSE_PROGRESS=plain
cut_s=25 # longer than the session, and than a transaction may stay open
started_s=$SECONDS

say() { echo "test-cluster [$((SECONDS - started_s)) s]: $*"; }
compose() { docker compose -f docker/compose.cluster.yaml "$@"; }
end() {
  local code=$?
  trap - EXIT INT TERM
  if ((code)); then
    say "FAILED with exit code $code; what the containers said last:"
    compose ps --all || true
    compose logs --no-color --tail 25 learner-a learner-b feedback replay || true
    docker logs --tail 25 "$watcher" || true
  fi
  say "removing the containers, their network and their volumes"
  docker rm --force "$watcher" >/dev/null 2>&1 || true
  compose down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1 || say "compose down failed"
  exit "$code"
}
fail() { say "$*"; exit 1; }

docker info >/dev/null || { echo "test-cluster: no Docker engine answers; start one" >&2; exit 1; }
docker compose version >/dev/null || { echo "test-cluster: needs Docker Compose v2 (docker compose)" >&2; exit 1; }
watcher=onebit-cluster-watcher
trap end EXIT
trap 'exit 130' INT TERM

docker rm --force "$watcher" >/dev/null 2>&1 || true # what an earlier run may have left
compose down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1 || true
say "building the image"
compose build topics
say "starting three brokers, topics, two learners, feedback and replay: $events events, $rate a second"
compose up --detach --no-build
# Waits for all events to be decided and settled, and says every few seconds how far that is.
compose run --detach --no-deps --name "$watcher" topics verify --wait-events "$events" --timeout 15m >/dev/null

state() { docker inspect --format "{{.State.$2}}" "$1"; }
decided() {
  local line
  line=$(docker logs "$watcher" 2>&1 | grep -o 'decided [0-9,]*' | tail -1 || true)
  line=${line#decided }
  echo "${line//,/}"
}
wait_until_decided() { # COUNT
  local now
  for _ in $(seq 180); do
    now=$(decided)
    if ((${now:-0} >= $1)); then return; fi
    [[ $(state "$watcher" Running) == true ]] || fail "verify ended before $1 events were decided"
    sleep 1
  done
  fail "after 3 minutes ${now:-0} events are decided, not $1"
}
wait_until_healthy() { # CONTAINER
  for _ in $(seq 60); do
    if [[ $(state "$1" Health.Status) == healthy ]]; then return; fi
    sleep 1
  done
  docker logs --tail 20 "$1"
  fail "the broker did not come back within 60 s"
}
under_replicated() { # SERVICE, of a broker that was not killed
  compose exec -T -e KAFKA_HEAP_OPTS=-Xmx128m "$1" /opt/kafka/bin/kafka-topics.sh --bootstrap-server "$1:19092" \
    --describe --under-replicated-partitions 2>/dev/null
}
wait_until_replicated() { # SERVICE
  for _ in $(seq 40); do
    if [[ -z $(under_replicated "$1" || echo unknown) ]]; then return; fi
    sleep 1
  done
  fail "some partitions are not on all three brokers again"
}

wait_until_decided $((events / 20))
for number in 1 2 3; do
  broker=$(compose ps --all --quiet "kafka-$number")
  docker kill --signal KILL "$broker" >/dev/null
  at=$(decided)
  say "kafka-$number is killed at $at decisions"
  wait_until_decided $((at + events / 10))
  say "without kafka-$number $(($(decided) - at)) more are decided; starting it again"
  docker start "$broker" >/dev/null
  wait_until_healthy "$broker"
  wait_until_replicated "kafka-$((number % 3 + 1))"
  say "kafka-$number has caught up"
done

learner=$(compose ps --all --quiet learner-a)
network=$(docker inspect --format '{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}' "$learner")
at=$(decided)
docker network disconnect "$network" "$learner"
say "learner-a is cut off the network at $at decisions, for $cut_s s"
sleep "$cut_s"
wait_until_decided $((at + events / 20))
docker network connect "$network" "$learner"
say "learner-a is back; meanwhile $(($(decided) - at)) more are decided"

say "waiting until all events are settled"
code=$(timeout 600 docker wait "$watcher") || fail "verify did not end within 10 minutes"
docker logs "$watcher" 2>/dev/null # the ledgers; progress went to stderr
((code == 0)) || fail "onebit verify ended with exit code $code"
say "applying the whole journal again"
compose run --rm -T --no-deps topics verify --replay 2>/dev/null | tail -12

say "counting the predictions with Kafka's own consumer, committed records only"
ids=$(compose exec -T kafka-1 /opt/kafka/bin/kafka-console-consumer.sh --bootstrap-server kafka-1:19092 \
  --topic onebit.predictions --from-beginning --isolation-level read_committed --timeout-ms 10000 2>/dev/null |
  sed -n 's/^{"id":"\([^"]*\)".*/\1/p')
records=$(wc -l <<<"$ids")
distinct=$(sort -u <<<"$ids" | wc -l)
say "events $events, predictions $records, distinct ids $distinct; three brokers killed, one learner cut off"
((records == events && distinct == events)) || fail "expected one prediction for each of $events events"
docker logs "$learner" 2>&1 | grep -v ' decided ' | tail -15 # how it was cut off, and came back
say "passed"
