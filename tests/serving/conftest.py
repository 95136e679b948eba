"""A server over the repository's tiny model, packed to 4 bits."""

import os
import subprocess
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A running `trelliq serve`, known by the line that it prints when it is ready."""

    def __init__(self, model, *options):
        binary = os.environ["BINARY_UNDER_TEST"]
        command = [binary, "serve", str(model), "--port", "0", "--name", "tiny", "--max-batch", "4",
                   "--context", "1024", "--prefix-cache", "16", "--kv-memory", "256", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"the server did not start: {line}{self.process.stderr.read()}")
        self.url = line.split()[-1]

    def client(self, **options):
        options.setdefault("api_key", "none")
        return openai.OpenAI(base_url=f"{self.url}/v1", max_retries=0, timeout=60, **options)

    def stop(self):
        """Ends as a service manager would; returns what was logged."""
        self.process.terminate()
        _, log = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, log
        return log


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The tiny model, packed."""
    packed = tmp_path_factory.mktemp("models") / "tiny-4bit"
    command = [os.environ["BINARY_UNDER_TEST"], "quantize", str(ROOT / "tests/models/tiny"), str(packed), "--bits", "4"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return packed


@pytest.fixture(scope="session")
def server(model):
    server = Server(model)
    yield server
    server.stop()


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def start(model):
    """Starts further servers with options of their own."""
    running = []

    def start(*options):
        running.append(Server(model, *options))
        return running[-1]

    yield start
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()
