"""Check the Helm chart, and run its containers on the Docker engine (`make test-chart`).

The checks:

- `helm lint`, and `helm template` for each set of values in `MATRIX`;
- every rendered object is valid for Kubernetes, and every pod is valid for the restricted Pod Security Standard;
- values that the schema forbids are rejected;
- on a Kafka broker, the rendered commands and variables of the topics job, a learner, a gateway, the monitor, the
  change job and the verification work, with the pods' users, privileges and volumes, and their probes succeed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.distribution import ROOT, expect, run

CHART = ROOT / "docker/chart"
KUBERNETES = "1.31"
USER_ID = 10001
PROJECT = "onebit-chart"
TOKEN = "chart-token"  # noqa: S105  # of the test's own gateway
READY_S = 120

Values = dict[str, Any]
Manifest = dict[str, Any]

SECRETS: Values = {"gateway": {"tokenSecret": {"name": "token"}}, "kafka": {"clientSecret": "client"}}
MATRIX: dict[str, Values] = {
    "defaults": {},
    "docs/deploy.md": yaml.safe_load((ROOT / "docs/deploy.md").read_text().split("```yaml\n")[1].split("```")[0]),
    "secrets": SECRETS,
    "tls": {"gateway": {"tlsSecret": "tls"}, "serviceMonitor": {"enabled": True}},
    "change": {"change": ["--window", "2m"], "verify": {"flags": ["--replay"]}},
    "minimal": {
        "topics": {"enabled": False}, "gateway": {"enabled": False}, "monitor": {"enabled": False},
        "verify": {"enabled": False}, "networkPolicy": {"enabled": False},
    },
    "fixed size": {
        "gateway": {"autoscaling": {"enabled": False}},
        "learner": {"podDisruptionBudget": {"minAvailable": 1, "maxUnavailable": None}},
    },
    "cluster": {
        "image": {"digest": f"sha256:{'0' * 64}"}, "imagePullSecrets": [{"name": "registry"}],
        "learner": {"nodeSelector": {"kubernetes.io/arch": "amd64"}, "tolerations": [{"operator": "Exists"}]},
        "settings": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"},
        "networkPolicy": {
            "kafkaTo": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "metricsFrom": [], "gatewayFrom": [],
            "egress": [{"ports": [{"port": 4318}]}],
        },
        "monitor": {"allowHosts": ["monitor.example.com"]}, "podAnnotations": {"team": "offers"},
    },
}  # fmt: skip
FORBIDDEN: dict[str, Values] = {
    "unknown value": {"learners": {"replicas": 3}},
    "password among the settings": {"settings": {"ONEBIT_SASL_PASSWORD": "secret"}},
    "not a setting": {"settings": {"PATH": "/bin"}},
    "no port": {"kafka": {"bootstrap": "kafka"}},
    "no replicas": {"learner": {"replicas": -1}},
}


def main(arguments: Sequence[str]) -> int:
    """Check the chart, and return the exit code."""
    parser = argparse.ArgumentParser(prog="chart", description="Check the Helm chart.")
    parser.add_argument("--helm", default=os.environ.get("HELM", "helm"), help="path of Helm")
    parser.add_argument("--image", default=os.environ.get("ONEBIT_IMAGE", "onebit"), help="image of Onebit")
    parser.add_argument("--no-docker", action="store_true", help="do not run the containers")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    helm = shutil.which(given.helm) or sys.exit(f"{given.helm} is not installed; install Helm 3 or set HELM")
    run(helm, "lint", "--strict", "--kube-version", KUBERNETES, str(CHART))
    for name, values in MATRIX.items():
        manifests = rendered(helm, values)
        for manifest in manifests:
            check(name, manifest)
        print(f"{name}: {len(manifests)} objects are valid", flush=True)
    for name, values in FORBIDDEN.items():
        expect(template(helm, values).returncode, 1, f"exit code of helm template: {name}")
    print(f"rejected: {', '.join(FORBIDDEN)}", flush=True)
    if not given.no_docker:
        run_containers(helm, given.image)
    print(f"passed in {time.monotonic() - started:.0f} s")
    return 0


def template(helm: str, values: Values) -> subprocess.CompletedProcess[str]:
    """Render the chart with values."""
    command = [
        helm,
        "template",
        "demo",
        str(CHART),
        "--kube-version",
        KUBERNETES,
        "--namespace",
        "shop",
        "--values",
        "-",
    ]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)


def rendered(helm: str, values: Values) -> list[Manifest]:
    """Return the objects of the chart."""
    done = template(helm, values)
    expect((done.returncode, done.stderr), (0, ""), f"helm template of {values}")
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def pod_of(manifest: Manifest) -> Manifest | None:
    """Return the pod's specification in an object, or None."""
    spec = manifest.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    pod: Manifest | None = spec.get("template", {}).get("spec")
    return pod


def check(name: str, manifest: Manifest) -> None:
    """Check an object against Kubernetes' schema, and its pod against the restricted Pod Security Standard."""
    import kubernetes_validate  # deferred: pytest imports this module, and only `make test-chart` installs the package

    what = f"{name}: {manifest['kind']} {manifest['metadata']['name']}"
    if manifest["kind"] != "ServiceMonitor":  # defined by the Prometheus operator
        try:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise SystemExit(f"{what}: {error.message} at {'.'.join(map(str, error.path))}") from error
    pod = pod_of(manifest)
    if pod is None:
        return
    expect(pod["securityContext"]["runAsNonRoot"], True, f"{what} is not root")
    expect(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"}, f"{what}: seccomp")
    expect((pod["automountServiceAccountToken"], pod["enableServiceLinks"]), (False, False), f"{what}: token, links")
    expect({"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), set(), f"{what}: namespaces of the host")
    kinds = {kind for volume in pod["volumes"] for kind in volume.keys() - {"name"}}
    expect(kinds <= {"emptyDir", "secret"}, True, f"{what}: kinds of volumes {kinds}")
    for container in (*pod["initContainers"], *pod["containers"]):
        security = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        expect(container["securityContext"], security, f"{what}: security of {container['name']}")
        expect("memory" in container["resources"]["limits"], True, f"{what}: memory of {container['name']} is limited")


class Containers:
    """Runs rendered containers as a kubelet would, as far as the Docker engine can."""

    def __init__(self, manifests: list[Manifest], folder: Path, network: str) -> None:
        self._pods = {
            manifest["metadata"]["name"]: pod for manifest in manifests if (pod := pod_of(manifest)) is not None
        }
        self._folder = folder
        self._network = network
        self._started_s: dict[str, float] = {}

    def start(self, workload: str, *, detach: bool = False) -> str:
        """Run the containers of a workload's first pod, and return the output, or the id if it still runs."""
        pod = self._pods[f"demo-{workload}"]
        home = self._folder / workload
        for volume in pod["volumes"]:
            path = home / volume["name"]
            path.mkdir(parents=True)
            if "secret" in volume:
                for file in (self._folder / "secrets" / volume["secret"]["secretName"]).iterdir():
                    shutil.copy(file, path)
            for each in (path, *path.iterdir()):
                os.chown(each, USER_ID, USER_ID)
        for container in pod["initContainers"]:
            run("docker", "run", "--rm", *self._flags(container, home, workload))
        (container,) = pod["containers"]
        self._started_s[workload] = time.monotonic()
        how = ("--detach", "--name", f"{PROJECT}-{workload}") if detach else ("--rm",)
        return run("docker", "run", *how, "--network", self._network, *self._flags(container, home, workload))

    def _flags(self, container: Manifest, home: Path, workload: str) -> Iterator[str]:
        fields = {"metadata.name": f"demo-{workload}-0"}
        variables = {each["name"]: self._value(each, fields) for each in container.get("env", [])}
        yield from ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
        yield from ("--user", f"{USER_ID}:{USER_ID}")
        for name, value in variables.items():
            yield from ("--env", f"{name}={value}")
        for mount in container["volumeMounts"]:
            mode = "ro" if mount.get("readOnly") else "rw"
            yield from ("--volume", f"{home / mount['name']}:{mount['mountPath']}:{mode}")
        for port in container.get("ports", []):
            yield from ("--publish", f"127.0.0.1::{port['containerPort']}")
        program = container.get("command", [])
        if program:
            yield from ("--entrypoint", program[0])
        yield container["image"]
        for argument in (*program[1:], *container.get("args", [])):
            yield argument.replace("$(POD_NAME)", variables.get("POD_NAME", ""))

    def _value(self, variable: Manifest, fields: dict[str, str]) -> str:
        if "value" in variable:
            return str(variable["value"])
        source = variable["valueFrom"]
        if "fieldRef" in source:
            return fields[source["fieldRef"]["fieldPath"]]
        key = source["secretKeyRef"]
        return Path(self._folder, "secrets", key["name"], key["key"]).read_text()

    def wait_until_ready(self, workload: str) -> str:
        """Wait until the readiness probe succeeds, check the liveness probe, and return the address."""
        (container,) = self._pods[f"demo-{workload}"]["containers"]
        port = run("docker", "port", f"{PROJECT}-{workload}").split(":")[-1].strip()
        address = f"http://127.0.0.1:{port}"
        started = self._started_s[workload]
        while status(address + container["readinessProbe"]["httpGet"]["path"]) != 200:
            if time.monotonic() > started + READY_S:
                raise SystemExit(f"{workload} is not ready: {run('docker', 'logs', f'{PROJECT}-{workload}')}")
            time.sleep(0.2)
        expect(status(address + container["livenessProbe"]["httpGet"]["path"]), 200, f"status of {workload}'s liveness")
        print(f"{workload}: ready after {time.monotonic() - started:.1f} s", flush=True)
        return address


def status(address: str) -> int | None:
    """Return the status of a GET request, or None if no server responds."""
    try:
        with urllib.request.urlopen(address, timeout=5) as response:  # noqa: S310  # an http address
            found: int = response.status
            return found
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def post(address: str, body: Values) -> Values:
    """Send a request with the token and return the response."""
    head = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(address, json.dumps(body).encode(), head)  # noqa: S310  # an http address
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        answer: Values = json.load(response)
        return answer


@contextmanager
def kafka() -> Iterator[str]:
    """Start the broker of docker/compose.yaml; yields the name of its network."""
    compose = ("docker", "compose", "--project-name", PROJECT, "--file", "docker/compose.yaml")
    port = os.environ.get("ONEBIT_KAFKA_PORT", "19292")
    try:
        remove()
        run(*compose, "up", "--detach", "--wait", "kafka", ONEBIT_KAFKA_PORT=port)
        yield f"{PROJECT}_default"
    finally:
        remove()
        run(*compose, "down", "--volumes", "--timeout", "5", ONEBIT_KAFKA_PORT=port)


def remove() -> None:
    """Remove the containers of the chart."""
    names = run("docker", "ps", "--all", "--quiet", "--filter", f"name=^{PROJECT}-(learner|gateway|monitor)$").split()
    if names:
        run("docker", "rm", "--force", *names)


def run_containers(helm: str, image: str) -> None:
    """Run the containers of an installation and of an upgrade, make a decision, and verify."""
    named, separator, tag = image.rpartition(":")
    tagged = bool(separator) and "/" not in tag  # a registry's address can contain a port
    values: Values = {
        "image": {"repository": named, "tag": tag} if tagged else {"repository": image, "tag": "latest"},
        "kafka": {"bootstrap": "kafka:19092", **SECRETS["kafka"]},
        "settings": {"ONEBIT_LEARNER": "late-ucb", "ONEBIT_N_CLASSES": 3, "ONEBIT_PENDING_MAX": 1_000_000},
        "learner": {"settings": {"ONEBIT_N_FEATURES": 4}},
        "topics": {"partitions": 1, "replication": 1},
        "gateway": SECRETS["gateway"],
        "change": ["--window", "2m"],
    }  # fmt: skip
    run("docker", "compose", "--file", "docker/compose.yaml", "build", "--quiet", "topics", ONEBIT_IMAGE=image)
    with tempfile.TemporaryDirectory() as name, kafka() as network:
        folder = Path(name)
        folder.chmod(0o755)
        for secret, key, value in (
            ("client", "client.properties", "security.protocol=PLAINTEXT\n"),
            ("token", "token", TOKEN),
        ):
            (folder / "secrets" / secret).mkdir(parents=True)
            (folder / "secrets" / secret / key).write_text(value)
        containers = Containers(rendered(helm, values), folder, network)
        containers.start("topics")
        print("topics: created", flush=True)
        for workload in ("learner", "gateway", "monitor"):
            containers.start(workload, detach=True)
        address = [containers.wait_until_ready(workload) for workload in ("learner", "gateway", "monitor")][1]
        decision = post(f"{address}/v1/decide", {"id": "visit-1", "x": [0.3, 1.2, 0.1, 1.0]})
        expect(decision["id"], "visit-1", "id of the decision")
        post(f"{address}/v1/feedback", {"id": "visit-1", "reward": 1})
        expect("window: 5m -> 2m" in containers.start("change"), True, "the change is reported")
        expect("the ledger adds up in 1 partition" in containers.start("verify"), True, "the ledger adds up")
        print("gateway: one decision; change: applied; verify: passed", flush=True)
        run("docker", "stop", "--time", "60", f"{PROJECT}-learner")
        code = run("docker", "inspect", "--format", "{{.State.ExitCode}}", f"{PROJECT}-learner").strip()
        expect(code, "0", "exit code of the learner after SIGTERM")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
