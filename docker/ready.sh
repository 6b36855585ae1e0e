#!/usr/bin/env bash
# Health check of the image. Healthy means ready: a learner has recovered its partitions. The port is the one in
# ONEBIT_METRICS_PORT, ONEBIT_PAGE_PORT or ONEBIT_SERVE_PORT. Programs without a port, such as verify, are healthy while
# they run. The check uses bash, because a check in Python would use more CPU time than the program.
set -euo pipefail
port=${ONEBIT_METRICS_PORT:-${ONEBIT_PAGE_PORT:-${ONEBIT_SERVE_PORT:-0}}}
if ((port == 0)); then exit 0; fi
exec 3<>"/dev/tcp/127.0.0.1/$port"
if [[ -n ${ONEBIT_SERVE_CERTIFICATE:-} ]]; then exit 0; fi # bash cannot speak TLS: an open port is enough
printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3
read -r status <&3
[[ $status == *" 200 "* ]]
