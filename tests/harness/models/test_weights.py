"""Missing weights (in a folder, the cache or on the hub) are noticed before anything starts."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from gradwire.harness.models.weights import tokenizer_available, weights_available

WAYS_OUT = ("size=tiny", "model.path=", "model.weights=random")
TOKENIZER_WAYS_OUT = ("size=tiny", "model.tokenizer=null", "model.tokenizer=<folder")


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
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')
    (tmp_path / "one.safetensors").touch()
    assert weights_available(make_model_config("llama", weights="pretrained", path=str(tmp_path))) is None


def test_without_a_tokenizer_named_nothing_is_needed(make_model_config):
    assert tokenizer_available(make_model_config("llama")) is None
    assert tokenizer_available(make_model_config("llama", weights="pretrained")) is None


@pytest.mark.parametrize("is_there", [True, False])
def test_a_tokenizers_folder_needs_its_file(make_model_config, tmp_path, is_there, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "words").mkdir()
    if is_there:
        (tmp_path / "words" / "tokenizer.json").touch()
    for named in (str(tmp_path / "words"), "~/words"):
        told = tokenizer_available(make_model_config("gpt2", tokenizer=named))
        if is_there:
            assert told is None
        else:
            assert f"model.tokenizer={named}: no such folder with a tokenizer.json" in told
            assert "\n" not in told and all(way in told for way in TOKENIZER_WAYS_OUT)


class Hub(BaseHTTPRequestHandler):
    """Answers for an open model, a gated one, and a missing one."""

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
    """The answers for weights and for tokenizers of these names, from a process of its own: the hub's
    client reads its settings when imported."""
    code = (
        "import json, sys\n"
        "from gradwire.harness.models.settings import ModelConfig\n"
        "from gradwire.harness.models.weights import tokenizer_available, weights_available\n"
        "weights = [ModelConfig(weights='pretrained', pretrained=name) for name in sys.argv[1:]]\n"
        "tokenizers = [ModelConfig(tokenizer=name) for name in sys.argv[1:]]\n"
        "answers = list(map(weights_available, weights)), list(map(tokenizer_available, tokenizers))\n"
        "print(json.dumps(answers))"
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
    answers = _ask(names, HF_ENDPOINT=hub, HF_HUB_CACHE=str(tmp_path))
    for (found, gated, missing), ways in zip(answers, (WAYS_OUT, TOKENIZER_WAYS_OUT), strict=True):
        assert found is None
        assert "some/gated" in gated and "licence" in gated and all(way in gated for way in ways)
        assert "some/missing" in missing and "no such model" in missing
        assert all(way in missing for way in ways)
    assert any(path.endswith("/some/open/resolve/main/tokenizer.json") for path in Hub.asked)


def test_offline_only_the_cache_is_used(hub, tmp_path):
    snapshot = tmp_path / "models--some--cached" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (snapshot / name).touch()
    (tmp_path / "models--some--cached" / "refs").mkdir()
    (tmp_path / "models--some--cached" / "refs" / "main").write_text("abc")
    asked_before = len(Hub.asked)
    answers = _ask(
        ["some/cached", "some/open"], HF_ENDPOINT=hub, HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="1"
    )
    for (cached, absent), ways in zip(answers, (WAYS_OUT, TOKENIZER_WAYS_OUT), strict=True):
        assert cached is None
        assert "some/open" in absent and "HF_HUB_OFFLINE" in absent and all(way in absent for way in ways)
    assert len(Hub.asked) == asked_before


def test_a_hub_that_does_not_answer_is_a_reason(tmp_path):
    answers = _ask(["some/model"], HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_CACHE=str(tmp_path))
    for (told,), ways in zip(answers, (WAYS_OUT, TOKENIZER_WAYS_OUT), strict=True):
        assert "did not answer" in told and "\n" not in told and all(way in told for way in ways)
