"""As much of the WebDriver protocol as the page's tests need."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER = "\ue007"
ESCAPE = "\ue00c"
TAB = "\ue004"


def missing():
    """What is not installed of a browser and its driver, by the names of Debian's packages."""
    needs = {"chromium": ["chromium", "chromium-browser", "google-chrome"], "chromium-driver": ["chromedriver"]}
    return [package for package, names in needs.items() if not any(map(shutil.which, names))]


class Browser:
    def __init__(self, width=1000, height=800, dark=False):
        self.driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for line in self.driver.stdout:
            if "successfully on port" in line:
                self.base = f"http://127.0.0.1:{line.rstrip().rstrip('.').split()[-1]}"
                break
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     f"--window-size={width},{height}", "--no-first-run"]
        if dark:
            arguments.append("--force-dark-mode")
        options = {"args": arguments, "binary": next(filter(None, map(
            shutil.which, ["chromium", "chromium-browser", "google-chrome"])))}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}}, "")
        self.session = f"/session/{session['sessionId']}"

    def call(self, method, path, body=None, session=None):
        session = self.session if session is None else session
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.base + session + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector, text):
        self.call("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def size(self, width, height):
        self.call("POST", "/window/rect", {"width": width, "height": height})

    def wait(self, script, seconds=20):
        """Waits until the script's value is true, and returns it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = self.run(f"return {script}")
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"it never came to {script}")

    def errors(self):
        """What the browser complained of."""
        log = self.call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] == "SEVERE"]

    def close(self):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.kill()
            self.driver.communicate()
