"""Prometheus beside a ``wisp up`` under load: what its targets show, and what queries of theirs return."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml
from rendered_chart import rendered
from tiny import write_tiny

from wisp_operator.cluster.metrics import Metrics

BUILD = Path(__file__).parents[1] / "prometheus/build.sh"
ROOT = Path(__file__).parents[3]
WISP = Path(sys.executable).with_name("wisp")
TIMEOUT_S = 60
KEYS = {"alice": "sk-alice", "bob": "sk-bob", "limited": "sk-limited"}
LIMITS = {"limited": " rpm=2"}


def binary(name):
    """The path of prometheus or promtool, built if it has to be."""
    built = subprocess.run([BUILD], stdout=subprocess.PIPE, text=True, check=True)
    return Path(built.stdout.strip()) / name


def fetch(url, body=None, key=KEYS["alice"]):
    """Status and text of a request."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until(condition, what):
    """Wait for a condition, and return what it returns."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what()}"
        time.sleep(0.2)
    return result


def operator_metrics():
    """The operator's own metrics after some reconciles: a cluster has no part in their text."""
    metrics = Metrics()
    for name, value in (("is_leader", 1), ("models", 2), ("queue_length", 0)):
        metrics.gauge(name, lambda value=value: value)
    metrics.count("api_calls", verb="apply", code="200")
    metrics.count("reconciles", outcome="done")
    metrics.count("wakes", why="demand")
    metrics.count("takeovers")
    metrics.observe(0.02)
    return metrics


class Boards:
    """Processes of one ``wisp up``, its load, and Prometheus."""

    def __init__(self, folder):
        self.folder = folder
        self.is_over = threading.Event()
        self.operator = operator_metrics()
        self.exporter = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.processes = []
        self.load = None

    def __enter__(self):
        try:
            threading.Thread(target=self.exporter.serve_forever, daemon=True).start()
            self.url = self._up()
            self.prometheus_url = self._prometheus()
            targets = ("gateway", "operator")
            until(lambda: all(map(self.is_scraped, targets)), lambda: f"{targets} in {self.targets()}")
            self.load = threading.Thread(target=self._ask)
            self.load.start()
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        self.is_over.set()
        if self.load is not None:
            self.load.join(TIMEOUT_S)
        self.exporter.shutdown()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(TIMEOUT_S)

    def _handler(self):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler):
                text = self.operator.text().encode()
                handler.send_response(200)
                handler.send_header("content-type", "text/plain; version=0.0.4")
                handler.end_headers()
                handler.wfile.write(text)

            def log_message(self, *_):
                pass

        return Handler

    def _start(self, *command, **more):
        with (self.folder / f"{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(list(map(str, command)), stderr=log, **more)
        self.processes.append(process)
        return process

    def _up(self):
        write_tiny(self.folder / "model")
        keys = self.folder / "keys"
        keys.write_text("".join(f"{name}:{key}{LIMITS.get(name, '')}\n" for name, key in KEYS.items()))
        model = {
            "apiVersion": "wisp.dev/v1alpha1",
            "kind": "InferenceModel",
            "metadata": {"name": "tiny"},
            "spec": {
                "model": {"uri": f"file://{self.folder / 'model'}"},
                "gpu": {"count": 0},
                "access": {"apiKeySecretRef": {"name": "keys"}},
                "scaling": {"min": 0, "idleAfter": "10m"},
            },
        }
        file = self.folder / "model.yaml"
        file.write_text(json.dumps(model))
        command = (WISP, "up", file, "--port", "0", "--api-keys", keys)
        process = self._start(*command, stdout=subprocess.PIPE, text=True, env=os.environ)
        return process.stdout.readline().strip().removesuffix("/v1")

    def _prometheus(self):
        config, targets = self.folder / "prometheus.yaml", self.folder / "pods.json"
        self.pods_file = targets
        targets.write_text("[]")
        jobs = {"gateway": self.url, "operator": f"http://127.0.0.1:{self.exporter.server_port}"}
        scrapes = [
            {
                "job_name": name,
                "authorization": {"credentials": KEYS["alice"]},
                "static_configs": [{"targets": [url.removeprefix("http://")]}],
            }
            for name, url in jobs.items()
        ]
        scrapes.append({"job_name": "pods", "file_sd_configs": [{"files": [str(targets)]}]})
        intervals = {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"}
        rules = self.folder / "rules.yaml"
        rules.write_text(yaml.safe_dump(self.rules()))
        document = {"global": intervals, "rule_files": [str(rules)], "scrape_configs": scrapes}
        config.write_text(yaml.safe_dump(document))
        log = self.folder / f"{len(self.processes)}.log"
        self._start(
            *(binary("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={self.folder / 'tsdb'}"),
            "--web.listen-address=127.0.0.1:0",
        )
        return until(lambda: self._address(log), lambda: f"Prometheus' address in {log.read_text()}")

    def _address(self, log):
        lines = [line for line in log.read_text().splitlines() if 'msg="Listening on"' in line]
        return "http://" + lines[0].partition("address=")[2].split()[0] if lines else None

    def rules(self):
        """The chart's alerts as Prometheus' rule file."""
        return rendered("monitoring.alerts.enabled=true")["PrometheusRule/wisp-alerts"]["spec"]

    def _ask(self):
        """Ask with every key, until the end: streams and complete answers, a wrong model now and then."""
        turn = 0
        while not self.is_over.is_set():
            turn += 1
            for key in KEYS.values():
                body = {"model": "tiny", "prompt": "the same words again " * 4, "max_tokens": 20}
                fetch(f"{self.url}/v1/completions", body | {"stream": turn % 2 == 0}, key)
                fetch(f"{self.url}/v1/completions", body | {"model": "nobody"}, key)
            self._find_pods()
            for name in ("api_calls", "reconciles", "wakes"):
                self._count(name)
            self.is_over.wait(0.2)

    def _count(self, name):
        labels = {"api_calls": {"verb": "apply", "code": "200"}, "reconciles": {"outcome": "done"}}
        self.operator.count(name, **labels.get(name, {"why": "demand"}))

    def _find_pods(self):
        models = json.loads(fetch(f"{self.url}/state")[1])["models"]
        addresses = [endpoint["address"] for model in models for endpoint in model["endpoints"]]
        groups = [
            {"targets": [address], "labels": {"namespace": "default", "pod": "tiny"}} for address in addresses
        ]
        text = json.dumps(groups)
        if text != self.pods_file.read_text():
            new = self.pods_file.with_suffix(".new")
            new.write_text(text)
            new.rename(self.pods_file)

    def get(self, path, **query):
        """Prometheus' answer to a call of its API: (error or empty, data)."""
        url = f"{self.prometheus_url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        status, text = fetch(url)
        answer = json.loads(text)
        return ("", answer["data"]) if status == 200 else (answer["error"], None)

    def targets(self):
        _, data = self.get("targets", state="active")
        return data["activeTargets"]

    def is_scraped(self, job):
        return any(target["health"] == "up" and target["scrapePool"] == job for target in self.targets())

    def values(self, expression):
        """Values of an instant query that are numbers.

        Raises:
            AssertionError: the expression does not parse.
        """
        error, data = self.get("query", query=expression)
        assert not error, f"{expression}: {error}"
        return [float(sample["value"][1]) for sample in data["result"] if sample["value"][1] != "NaN"]
