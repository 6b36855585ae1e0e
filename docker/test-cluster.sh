#!/usr/bin/env bash
# Run docker/compose.cluster.yaml (three brokers, three learners, a shared model) with a continuous stream. Kill the
# brokers one after the other, and disconnect one learner for longer than its session. Every event must be decided
# exactly once, the ledger must be exact, and each decision must match its model version.
set -euo pipefail
cd "$(dirname "$0")/.."
test_name=test-cluster
export COMPOSE_FILE=docker/compose.cluster.yaml
logs_of="learner-a learner-b learner-c feedback replay verify"
. docker/under-test.sh

rate=${ONEBIT_TEST_RATE:-60}
image=${ONEBIT_IMAGE:-onebit}
kafka_image=${ONEBIT_KAFKA_IMAGE:-apache/kafka:4.1.1}
client=${ONEBIT_CLIENT:-auto}
unset "${!ONEBIT_@}" # for reproducible runs
export ONEBIT_IMAGE=$image ONEBIT_KAFKA_IMAGE=$kafka_image ONEBIT_CLIENT=$client
export ONEBIT_EVENTS=1000000 ONEBIT_RATE=$rate ONEBIT_SHUFFLE=true ONEBIT_SEED=7
export ONEBIT_DELAY=lognormal:500ms,1.0 ONEBIT_WINDOW=20s ONEBIT_SESSION_TIMEOUT=6s ONEBIT_TRANSACTION_TIMEOUT=15s
export ONEBIT_KAFKA_HEAP="-Xms128m -Xmx384m"
cut_s=25 # longer than the session timeout and the transaction timeout

begin
say "building the image"
compose build topics
say "starting three brokers, topics, three learners, feedback, replay and verify: $rate events per second"
compose up --detach --no-build
watcher=$(compose ps --all --quiet verify)

under_replicated() { # SERVICE of a running broker
  compose exec -T -e KAFKA_HEAP_OPTS=-Xmx128m "$1" /opt/kafka/bin/kafka-topics.sh --bootstrap-server "$1:19092" \
    --describe --under-replicated-partitions 2>/dev/null
}
wait_until_replicated() { # SERVICE
  for _ in $(seq 40); do
    if [[ -z $(under_replicated "$1" || echo unknown) ]]; then return; fi
    sleep 1
  done
  fail "some partitions are still under-replicated"
}

wait_until_decided 700
for number in 1 2 3; do
  broker=$(compose ps --all --quiet "kafka-$number")
  docker kill --signal KILL "$broker" >/dev/null
  at=$(decided)
  say "killed kafka-$number at $at decisions"
  wait_until_decided $((at + 1400))
  say "$(($(decided) - at)) decisions without kafka-$number; starting it again"
  docker start "$broker" >/dev/null
  wait_until_healthy "$broker"
  wait_until_replicated "kafka-$((number % 3 + 1))"
  say "kafka-$number is in sync"
done

learner=$(compose ps --all --quiet learner-a)
network=$(docker inspect --format '{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}' "$learner")
at=$(decided)
docker network disconnect "$network" "$learner"
say "disconnecting learner-a at $at decisions, for $cut_s s"
sleep "$cut_s"
wait_until_decided $((at + 700))
docker network connect "$network" "$learner"
say "reconnected learner-a after $(($(decided) - at)) decisions"

compose stop --timeout 60 replay
events=$(compose logs --no-log-prefix replay | sed -n 's/.* \([0-9,]*\) of [0-9,]* events are in .*/\1/p' | tail -1 | tr -d ,)
say "stopped the replay after $events events; waiting until all are settled"
compose stop --timeout 5 verify
compose run --rm -T --no-deps verify verify --wait-events "$events" --timeout 10m 2>/dev/null
say "recomputing the state from the whole journal"
compose run --rm -T --no-deps topics verify --replay 2>/dev/null | tail -12

expect_one_prediction_each "$events" kafka-1 kafka-1:19092
docker logs "$learner" 2>&1 | grep -v ' decided ' | tail -15 # its disconnection and recovery
say "passed"
