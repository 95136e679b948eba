"""Measures what a server must reach, and prints it as JSON.

    python3 tests/serving/measure.py MODEL [--trelliq target/release/trelliq] [--rounds 5] [--cores 0,1]
    python3 tests/serving/measure.py MODEL --load 120

Figures that are compared come from the same minute, one after the other, several times; what is
printed is the median. Token ids 0 and 2, the end tokens of SmolLM2, are forbidden, so that every answer
has all its tokens. `--load SECONDS` runs `examples/load.rs` with 64 streams instead.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# 20 tokens for SmolLM2, whose template is not applied; the number is that of the prompt.
PROMPT = "Story {:03}: once upon a time there was a king who lived in a castle by the sea"
NO_END = {"0": -100, "2": -100}


class Server:
    def __init__(self, arguments, *options):
        command = [arguments.trelliq, "serve", arguments.model, "--port", "0", *options]
        begun = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        self.ready = time.perf_counter() - begun
        if not line.startswith("listening on "):
            raise SystemExit("the server did not start")
        host, port = line.split("//")[1].strip().split(":")
        self.address = (host, int(port))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def stream(self, number, tokens):
        """The times at which text came, as seconds after the request was sent."""
        body = json.dumps({"prompt": PROMPT.format(number), "max_tokens": tokens, "temperature": 0,
                           "stream": True, "logit_bias": NO_END}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        times = []
        with socket.create_connection(self.address) as connection:
            connection.sendall(head.encode() + body)
            held = b""
            while not held.endswith(b"0\r\n\r\n"):
                piece = connection.recv(1 << 16)
                if not piece:
                    raise SystemExit("a stream was cut off")
                now = time.perf_counter()
                # Every event but the last two, the end of the choice and [DONE], brings text.
                times += [now] * piece.count(b"data: ")
                held = (held + piece)[-16:]
        return times[:-2]


def together(server, streams, tokens, numbers):
    """Tokens a second of several streams while all of them run."""
    all_times = [None] * streams

    def one(index):
        all_times[index] = server.stream(next(numbers), tokens)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begun = max(times[0] for times in all_times)
    ended = min(times[-1] for times in all_times)
    return sum(sum(begun < t <= ended for t in times) for times in all_times) / (ended - begun)


def alone(arguments, tokens):
    """Tokens a second of `trelliq run`, after the prompt."""
    command = [arguments.trelliq, "run", arguments.model, PROMPT.format(999), "--raw", "--json", "--max-tokens", str(tokens)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found["decode_tokens_per_second"]


def first_token(server, numbers):
    begun = time.perf_counter()
    return server.stream(next(numbers), 1)[0] - begun


def first_token_under_load(server, streams, numbers):
    """Seconds to the first token while so many streams run, and seconds of a step of these."""
    rate = []
    running = threading.Thread(target=lambda: rate.append(together(server, streams, 160, numbers)))
    running.start()
    time.sleep(0.7)
    times = [first_token(server, numbers) for _ in range(3)]
    if not running.is_alive():
        raise SystemExit("the load ended too early")
    running.join()
    return statistics.median(times), streams / rate[0]


def count():
    number = 0
    while True:
        number += 1
        yield number


def measure(arguments):
    numbers = count()
    found = {name: [] for name in (
        "ready_seconds", "run_tokens_per_second", "one_stream_tokens_per_second", "overhead_percent",
        "eight_streams_tokens_per_second", "eight_to_one", "first_token_seconds",
        "first_token_under_load_seconds", "step_of_four_seconds", "first_token_bound_seconds")}

    def note(**values):
        for name, value in values.items():
            found[name].append(value)

    for _ in range(arguments.rounds):
        with Server(arguments, "--prefix-cache", "0") as server:
            note(ready_seconds=server.ready)
            server.stream(next(numbers), 8)
            one = together(server, 1, 128, numbers)
            eight = together(server, 8, 128, numbers)
            idle = statistics.median(first_token(server, numbers) for _ in range(5))
            loaded, step = first_token_under_load(server, 4, numbers)
            run = alone(arguments, 128)
            again = together(server, 1, 128, numbers)
            one = (one + again) / 2
            note(run_tokens_per_second=run, one_stream_tokens_per_second=one, overhead_percent=100 * (1 - one / run),
                 eight_streams_tokens_per_second=eight, eight_to_one=eight / one, first_token_seconds=idle,
                 first_token_under_load_seconds=loaded, step_of_four_seconds=step,
                 first_token_bound_seconds=2 * idle + step)
    return {name: round(statistics.median(values), 4) for name, values in found.items()}


def load(arguments):
    with Server(arguments, "--context", "512", "--queue", "64") as server:
        address = "%s:%d" % server.address
        command = ["cargo", "run", "--quiet", "--release", "--locked", "--package", "trelliq-server", "--example", "load",
                   "--", address, "--streams", "64", "--seconds", str(arguments.load)]
        return subprocess.call(command, cwd=ROOT)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--trelliq", default=str(ROOT / "target/release/trelliq"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", help="run on these cores only, such as 0,1 (Linux)")
    parser.add_argument("--load", type=int, metavar="SECONDS")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})
    if arguments.load:
        raise SystemExit(load(arguments))
    print(json.dumps(measure(arguments), indent=2))


if __name__ == "__main__":
    main()
