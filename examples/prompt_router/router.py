"""Example of a service that routes requests among language models, and learns from late thumbs.

Each request goes to one of the models that are up. The answer's reader may later send a thumb, up or down; about half
of them never do. The reward is the thumb, 1 or 0, minus the cost of the model, so that a cheaper model is preferred if
its answers are as good. The features are the words of the request. The models in this example are simulated.

    POST /ask      {"prompt": "..."}                 returns the id, the model and the answer
    POST /thumb    {"id": "...", "up": true}         for an earlier answer
    POST /models   {"name": "large", "up": false}    a model that is down gets no requests

The service uses Onebit's HTTP gateway, and no package other than Python's standard library. See docs/prompt-router.md
for the commands that start the pipeline. `--simulate N` sends N requests and thumbs to the running service, and prints
the mean reward of the first and the last third.
"""

import argparse
import json
import random
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

BODY_BYTES_MAX = 100_000
REMEMBERED_MAX = 100_000  # answers that wait for a thumb; the oldest is forgotten first

Json = dict[str, Any]
Call = Callable[[str, Json], Json]
"""Posts a JSON object to a path of Onebit's gateway, and returns the response."""


class RequestError(Exception):
    """A request that the service rejects. The message is its response."""


class Model(NamedTuple):
    """A language model: its cost per answer, as a share of a thumb's value, and how it answers."""

    cost: float
    answer: Callable[[str], str]


MODELS = {
    "small": Model(0.05, lambda prompt: f"short answer to: {prompt}"),
    "code": Model(0.2, lambda prompt: f"program for: {prompt}"),
    "large": Model(0.4, lambda prompt: f"long answer to: {prompt}"),
}


class Router:
    """Chooses a model for each request, and turns thumbs into rewards."""

    def __init__(self, call: Call, new_id: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._call, self._new_id = call, new_id
        self._down: set[str] = set()
        self._lock = Lock()
        self._answered: OrderedDict[str, Json] = OrderedDict()  # decisions by id

    def ask(self, request: Json) -> Json:
        """Answer a request with a model that is up."""
        prompt = request.get("prompt")
        if not isinstance(prompt, str):
            raise RequestError("prompt: expected a string")
        up = [name for name in MODELS if name not in self._down]
        if not up:
            raise RequestError("all models are down")
        x = {"one": 1, "words": min(len(prompt.split()), 100) / 100, "prompt": prompt[:10_000]}
        decision = self._call("/v1/decide", {"id": self._new_id(), "x": x, "eligible": up})
        model = decision["class"]
        with self._lock:
            self._answered[decision["id"]] = decision
            if len(self._answered) > REMEMBERED_MAX:
                self._answered.popitem(last=False)
        return {"id": decision["id"], "model": model, "answer": MODELS[model].answer(prompt)}

    def thumb(self, request: Json) -> Json:
        """Report the reward of an earlier answer. Only the first thumb counts."""
        if not isinstance(request.get("up"), bool):
            raise RequestError("up: expected true or false")
        with self._lock:
            decision = self._answered.pop(str(request.get("id")), None)
        if decision is None:
            raise RequestError("id: expected an answer without a thumb")
        reward = float(request["up"]) - MODELS[decision["class"]].cost
        feedback = {"id": decision["id"], "reward": reward, "action": decision["action"]}
        self._call("/v1/feedback", feedback)
        return {"id": decision["id"], "reward": reward}

    def models(self, request: Json) -> Json:
        """Mark a model as up or down."""
        name = request.get("name")
        if name not in MODELS or not isinstance(request.get("up"), bool):
            raise RequestError(f"expected up, true or false, and a name: {', '.join(MODELS)}")
        (self._down.discard if request["up"] else self._down.add)(str(name))
        return {"up": [one for one in MODELS if one not in self._down]}


def post(url: str, fields: Json, timeout_s: float = 10.0) -> Json:
    """Post a JSON object, and return the response."""
    request = Request(url, json.dumps(fields).encode(), {"Content-Type": "application/json"})  # noqa: S310
    with urlopen(request, timeout=timeout_s) as response:  # noqa: S310 - the operator chooses the address
        answer: Json = json.load(response)
        return answer


def server(router: Router, port: int) -> ThreadingHTTPServer:
    """Return the HTTP server. Port 0 selects a free port."""
    routes = {"/ask": router.ask, "/thumb": router.thumb, "/models": router.models}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, answer = self._answer()
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _answer(self) -> tuple[int, Json]:
            route = routes.get(self.path)
            if route is None:
                return 404, {"error": f"expected one of {', '.join(routes)}"}
            try:
                request = json.loads(self.rfile.read(min(int(self.headers.get("Content-Length", 0)), BODY_BYTES_MAX)))
                return 200, route(request if isinstance(request, dict) else {})
            except (RequestError, ValueError) as error:
                return 400, {"error": str(error)}
            except (HTTPError, URLError, TimeoutError) as error:
                return 503, {"error": f"the gateway did not decide: {error}"}

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


TOPICS = {"code": "sort a list in python", "essay": "explain the causes of inflation", "chat": "hello how are you"}
LIKED = {"code": {"code": 0.9, "large": 0.8, "small": 0.2}, "essay": {"large": 0.95, "code": 0.2, "small": 0.3},
         "chat": {"small": 0.9, "large": 0.9, "code": 0.3}}  # fmt: skip
"""The simulated readers: the probability that they like a model's answer, by topic."""


def simulate(ask: Callable[[Json], Json], thumb: Callable[[Json], Json], rounds: int, seed: int = 1) -> list[float]:
    """Send requests and, for half of the answers, a thumb. Return each answer's expected reward."""
    draw, found = random.Random(seed), list[float]()
    for _ in range(rounds):
        topic = draw.choice(tuple(TOPICS))
        answer = ask({"prompt": f"{TOPICS[topic]} {draw.randrange(1_000)}"})
        liked = LIKED[topic][answer["model"]]
        found.append(liked - MODELS[answer["model"]].cost)
        if draw.random() < 0.5:
            thumb({"id": answer["id"], "up": draw.random() < liked})
    return found


def main() -> int:
    """Serve until Ctrl-C, or simulate readers."""
    parser = argparse.ArgumentParser(description="Example of a router for language models.")
    parser.add_argument("--gateway", default="http://localhost:8080", help="address of onebit serve")
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--simulate", type=int, metavar="N", help="send N requests to the running service")
    given = parser.parse_args()
    if given.simulate is None:
        with server(Router(lambda path, fields: post(given.gateway + path, fields)), given.port) as serving:
            print(f"prompt router at http://localhost:{given.port}", flush=True)
            try:
                serving.serve_forever()
            except KeyboardInterrupt:
                return 0
    url = f"http://localhost:{given.port}"
    try:
        rewards = simulate(lambda one: post(f"{url}/ask", one), lambda one: post(f"{url}/thumb", one), given.simulate)
    except (HTTPError, URLError) as error:
        raise SystemExit(f"{url}: {error}. The router, onebit serve and onebit learn must be running") from None
    third = max(1, len(rewards) // 3)
    first, last = sum(rewards[:third]) / third, sum(rewards[-third:]) / third
    print(f"{len(rewards)} requests; mean reward {first:.2f} in the first third, {last:.2f} in the last third")
    return 0


if __name__ == "__main__":
    sys.exit(main())
