"""The examples of docs/serving.md, run as they stand but for the address."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "serving.md"
BLOCK = re.compile(r"^```(\w+) test\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall(DOCUMENT.read_text())


def test_there_are_examples():
    kinds = {kind for kind, _ in BLOCKS}
    assert {"sh", "python", "toml", "json"} <= kinds and len(BLOCKS) >= 8


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_example(index, server, start, tmp_path):
    kind, code = BLOCKS[index]
    code = code.replace("http://localhost:8080", server.url).replace("http://127.0.0.1:8080", server.url)
    if kind == "sh":
        if shutil.which("curl") is None:
            pytest.skip("there is no curl")
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True, timeout=60)
    elif kind == "python":
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    elif kind == "toml":
        file = tmp_path / "trelliq.toml"
        file.write_text(code)
        log = start("--config", str(file)).stop()
        assert "warning" not in log, log
        return
    else:
        check_editor(code, server)
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), "an example shows something"
    assert '"error"' not in done.stdout, done.stdout


def check_editor(code, server):
    """An editor's settings name an address and a model that answer."""
    import json

    settings = json.loads(code)
    model = settings["models"][0]
    import openai

    client = openai.OpenAI(base_url=model["apiBase"], api_key=model.get("apiKey", "none"), max_retries=0)
    answer = client.chat.completions.create(
        model=model["model"], messages=[{"role": "user", "content": "hi"}], max_tokens=4
    )
    assert answer.choices
