"""Runs `onebit serve` as a process with a real Kafka broker and sends requests to the process."""

import json
import urllib.request
from typing import Any
from urllib.error import HTTPError, URLError

from onebit.testing.processes import Program
from tests.processes import Pipeline, free_port


class Gateway:
    """A gateway process, and methods that send requests to the gateway."""

    def __init__(self, pipeline: Pipeline, timeout: str = "30s") -> None:
        self.port = free_port()
        self.program: Program = pipeline.start("serve", "--serve-port", str(self.port), "--timeout", timeout)
        self.program.wait_until(lambda: self.status("/readyz") == 200, "the gateway is ready")

    def status(self, path: str) -> int:
        """Return the HTTP status for a path, or 0 if the gateway is not listening."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as got:
                return int(got.status)
        except HTTPError as error:
            return error.code
        except URLError:
            return 0

    def text(self, path: str) -> str:
        """Return the content of a page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as got:
            return str(got.read().decode())

    def post(self, path: str, body: object, **headers: str) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=60) as got:  # noqa: S310
            return json.loads(got.read())

    def judge(self, answer: Any) -> Any:
        """Send feedback for a decision."""
        return self.post("/v1/feedback", {"id": answer["id"], "reward": 1, "action": answer["action"]})

    def decide(self, visit: int, **headers: str) -> Any:
        return self.post("/v1/decide", {"id": f"visit-{visit}", "x": {"i": [visit % 4], "v": [1.0]}}, **headers)
