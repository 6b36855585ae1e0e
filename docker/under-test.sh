# Shared functions of the scripts that test a compose file. Source it from bash, after setting:
#   test_name     prefix of the script's messages
#   COMPOSE_FILE  the file under test, or several separated by :, exported
#   logs_of       services whose last log lines are printed on failure
# After the start, also set `watcher` to the container in which `onebit verify` waits for the end and prints progress.
# Call `begin` first. `end` removes everything at exit.
started_s=$SECONDS
export COMPOSE_ANSI=never COMPOSE_PROGRESS=plain

say() { echo "$test_name [$((SECONDS - started_s)) s]: $*"; }
fail() { say "$*"; exit 1; }
compose() { docker compose "$@"; }
remove() { compose down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1; }

begin() {
  command -v docker >/dev/null || { echo "$test_name: docker is not installed; install Docker with Compose v2" >&2; exit 1; }
  docker info >/dev/null || { echo "$test_name: the Docker engine is not running" >&2; exit 1; }
  docker compose version >/dev/null || { echo "$test_name: requires Docker Compose v2 (docker compose)" >&2; exit 1; }
  trap end EXIT
  trap 'exit 130' INT TERM
  remove || true # left by an earlier run
}
end() {
  local code=$?
  trap - EXIT INT TERM
  if ((code)); then
    say "FAILED with exit code $code; last log lines of the containers:"
    compose ps --all || true
    compose logs --no-color --tail 40 $logs_of || true
  fi
  say "removing the containers, their network and their volumes"
  remove || say "compose down failed"
  exit "$code"
}

state() { docker inspect --format "{{.State.$2}}" "$1"; } # CONTAINER FIELD
decided() { # the number of decisions, from the progress of verify
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
  fail "${now:-0} events are decided after 3 minutes; expected $1"
}
wait_until_healthy() { # CONTAINER; a restarted one is unhealthy until its first check
  for _ in $(seq 60); do
    if [[ $(state "$1" Running) == true && $(state "$1" Health.Status) == healthy ]]; then return; fi
    sleep 1
  done
  docker logs --tail 20 "$1"
  fail "$(docker inspect --format '{{.Name}}' "$1") is not healthy after 60 s"
}
expect_one_prediction_each() { # EVENTS SERVICE ADDRESS
  local ids records distinct
  say "counting the predictions with Kafka's own consumer, committed records only"
  ids=$(compose exec -T "$2" /opt/kafka/bin/kafka-console-consumer.sh --bootstrap-server "$3" \
    --topic onebit.predictions --from-beginning --isolation-level read_committed --timeout-ms 10000 2>/dev/null |
    sed -n 's/^{"id":"\([^"]*\)".*/\1/p')
  records=$(wc -l <<<"$ids")
  distinct=$(sort -u <<<"$ids" | wc -l)
  say "events $1, predictions $records, distinct ids $distinct"
  ((records == $1 && distinct == $1)) || fail "expected one prediction for each of $1 events"
}
