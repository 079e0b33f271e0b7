"""Whether weights can be had: from a folder, the cache or the hub, told before anything starts."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from gradwire.harness.models.weights import weights_available

WAYS_OUT = ("size=tiny", "model.path=", "model.weights=random")


def test_random_weights_are_always_there(make_model_config):
    assert weights_available(make_model_config("llama")) is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [(None, "no such folder"), ([], "no config.json"), (["config.json"], "none of model.safetensors")],
)
def test_an_incomplete_folder_is_named_with_the_ways_out(make_model_config, tmp_path, files, reason):
    folder = tmp_path / "weights"
    if files is not None:
        folder.mkdir()
        for name in files:
            (folder / name).touch()
    told = weights_available(make_model_config("llama", weights="pretrained", path=str(folder)))
    assert str(folder) in told and reason in told and "\n" not in told
    assert all(way in told for way in WAYS_OUT)


def test_a_complete_folder_will_do(make_model_config, tmp_path):
    for name in ("config.json", "model.safetensors.index.json"):
        (tmp_path / name).touch()
    assert weights_available(make_model_config("llama", weights="pretrained", path=str(tmp_path))) is None


class Hub(BaseHTTPRequestHandler):
    """Answers for a model that is open, one that is gated, and one that is not there."""

    asked: ClassVar[list[str]] = []

    def do_HEAD(self):
        self.asked.append(self.path)
        if "/open/" in self.path:
            self.send_response(200)
            self.send_header("ETag", '"1"')
        else:
            gated = "/gated/" in self.path
            self.send_response(403 if gated else 404)
            self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def _ask(names, **environment):
    """The answers for models of these names, from a process of its own: the hub's client reads its
    settings when imported."""
    code = (
        "import json, sys\n"
        "from gradwire.harness.models.config import ModelConfig\n"
        "from gradwire.harness.models.weights import weights_available\n"
        "models = [ModelConfig(weights='pretrained', pretrained=name) for name in sys.argv[1:]]\n"
        "print(json.dumps([weights_available(model) for model in models]))"
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if "OFFLINE" not in name and "proxy" not in name.lower()
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *names],
        env=kept | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def test_the_hub_is_asked_for_what_is_not_here(hub, tmp_path):
    names = ["some/open", "some/gated", "some/missing"]
    found, gated, missing = _ask(names, HF_ENDPOINT=hub, HF_HUB_CACHE=str(tmp_path))
    assert found is None
    assert "some/gated" in gated and "licence" in gated and all(way in gated for way in WAYS_OUT)
    assert (
        "some/missing" in missing and "no such model" in missing and all(way in missing for way in WAYS_OUT)
    )


def test_offline_nobody_is_asked_and_the_cache_counts(hub, tmp_path):
    snapshot = tmp_path / "models--some--cached" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).touch()
    (tmp_path / "models--some--cached" / "refs").mkdir()
    (tmp_path / "models--some--cached" / "refs" / "main").write_text("abc")
    asked_before = len(Hub.asked)
    cached, absent = _ask(
        ["some/cached", "some/open"], HF_ENDPOINT=hub, HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="1"
    )
    assert cached is None
    assert "some/open" in absent and "HF_HUB_OFFLINE" in absent and all(way in absent for way in WAYS_OUT)
    assert len(Hub.asked) == asked_before


def test_a_hub_that_does_not_answer_is_a_reason(tmp_path):
    (told,) = _ask(["some/model"], HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_CACHE=str(tmp_path))
    assert "did not answer" in told and "\n" not in told and all(way in told for way in WAYS_OUT)
