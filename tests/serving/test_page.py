"""The page in a headless browser."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import webdriver

PAGE = Path(__file__).resolve().parents[2] / "crates/trelliq-server/src/page"
pytestmark = pytest.mark.skipif(
    bool(webdriver.missing()), reason=f"not installed: {', '.join(webdriver.missing())}"
)
LAST = "document.querySelector('.message.assistant:last-of-type .content')?.textContent"
IDLE = "!document.getElementById('send').hidden"


@pytest.fixture(scope="module")
def browser():
    browser = webdriver.Browser()
    yield browser
    browser.close()


@pytest.fixture
def page(browser, server):
    browser.open(server.url)
    browser.run("localStorage.clear(); sessionStorage.clear()")
    browser.open(server.url)
    browser.wait("document.getElementById('model').textContent === 'tiny'")
    return browser


def setting(page, name, value):
    script = "const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('change'))"
    page.run(script, name, str(value))


def ask(page, text):
    page.type("#question", text + webdriver.ENTER)


def endless(page):
    """Forbids the tiny model's end token, so that an answer is as long as it may be."""
    page.run("""
        const fetch = window.fetch;
        window.fetch = (url, options) => {
            if (!String(url).includes('chat')) return fetch(url, options);
            const body = {...JSON.parse(options.body), logit_bias: {0: -100}};
            return fetch(url, {...options, body: JSON.stringify(body)});
        };""")


def test_a_question_is_answered_as_a_stream(page):
    setting(page, "temperature", 0)
    setting(page, "max_tokens", 300)
    ask(page, "What is a hacker?")
    lengths = set()
    page.wait(f"({LAST} ?? '').length > 0")
    while not page.run(f"return {IDLE}"):
        lengths.add(page.run(f"return {LAST}.length"))
    assert len(lengths) > 3, "the text grew"
    assert page.run("return document.querySelector('.message.user .content').textContent") == "What is a hacker?"
    assert re.fullmatch(r"[\d.]+ tokens/s", page.wait("document.getElementById('speed').textContent.includes('tokens/s') && document.getElementById('speed').textContent"))
    assert "MiB" in page.wait("document.getElementById('memory').textContent.includes('MiB') && document.getElementById('memory').textContent")
    assert page.errors() == []


def test_stop_ends_an_answer_and_regenerate_makes_another(page, server):
    setting(page, "max_tokens", 900)
    setting(page, "temperature", 1.3)
    endless(page)
    ask(page, "Speak.")
    # In one script, as the tiny model is fast; a hidden button would not be clicked.
    page.wait(f"({LAST} ?? '').length > 20 && document.getElementById('stop').offsetParent && (document.getElementById('stop').click(), true)")
    page.wait(IDLE)
    first = page.run(f"return {LAST}")
    assert first == page.run(f"return {LAST}")
    setting(page, "max_tokens", 12)
    page.click("#regenerate")
    page.wait(f"{IDLE} && ({LAST} ?? '').length > 0")
    assert page.run(f"return {LAST}") != first
    assert page.run("return document.querySelectorAll('.message').length") == 2


def test_the_system_prompt_and_controls_are_sent(page):
    page.run("""
        window.sent = null;
        const fetch = window.fetch;
        window.fetch = (url, options) => {
            if (String(url).includes('chat')) window.sent = options.body;
            return fetch(url, options);
        };""")
    page.click("#toggle-settings")
    page.type("#system", "Be brief.")
    setting(page, "max_tokens", 5)
    setting(page, "top_k", 7)
    setting(page, "seed", 11)
    ask(page, "Hello")
    sent = json.loads(page.wait("window.sent"))
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert (sent["max_tokens"], sent["top_k"], sent["seed"]) == (5, 7, 11)
    page.wait(IDLE)


ATTACKS = """
<script>window.attacked = 1</script> <img src=x onerror="window.attacked = 1">
[link](javascript:window.attacked=1) [data](data:text/html,<script>window.attacked=1</script>)
[ok](https://example.org/a?b=1&c=<b>) ![pic](http://example.org/x.png) <javascript:window.attacked=1>
```html
<script>window.attacked = 1</script>
```
**<b onmouseover=window.attacked=1>bold</b>** `<i>` # not a title

# Title <u>x</u>
| a | <s>b</s> |
|---|---|
| 1 | <iframe src="javascript:window.attacked=1"></iframe> |

> <a href="javascript:window.attacked=1">quote</a>
1. <svg onload=window.attacked=1>
   - nested **strong** and _emphasis_
"""


def test_what_a_model_writes_never_becomes_markup(page):
    found = page.run("""
        const done = arguments[0];
        return import('/markdown.js').then(({ render }) => {
            const box = document.createElement('div');
            box.id = 'box';
            box.append(render(done));
            document.body.append(box);
            const all = [...box.querySelectorAll('*')];
            return {
                names: [...new Set(all.map((node) => node.localName))].sort(),
                attributes: all.flatMap((node) => [...node.attributes].map((a) => a.name)),
                links: [...box.querySelectorAll('a')].map((a) => a.href),
                text: box.textContent,
                attacked: window.attacked ?? null,
            };
        });""", ATTACKS)
    allowed = {"p", "a", "code", "pre", "strong", "em", "s", "h3", "table", "tr", "th", "td", "blockquote", "ol", "ul", "li", "hr"}
    assert set(found["names"]) <= allowed, found["names"]
    assert set(found["attributes"]) <= {"href", "rel", "target", "start"}
    assert all(link.startswith(("https://example.org/", "http://example.org/")) for link in found["links"])
    assert len(found["links"]) >= 1 and found["attacked"] is None
    assert "<script>window.attacked = 1</script>" in found["text"]


def test_markdown_is_shown(page):
    html = page.run("""return import('/markdown.js').then(({ render }) => {
        const box = document.createElement('div');
        box.append(render(arguments[0]));
        return box.innerHTML;
    });""".replace("arguments[0]", json.dumps("# T\\na **b** *c* `d`\\n\\n- x\\n- y\\n\\n```\\ncode\\n```\\nsnake_case_name 2*3*4".replace("\\n", "\n"))))
    assert html == (
        "<h3>T</h3><p>a <strong>b</strong> <em>c</em> <code>d</code></p><ul><li>x</li><li>y</li></ul>"
        "<pre><code>code</code></pre><p>snake_case_name 2<em>3</em>4</p>"
    )


class Attacker(BaseHTTPRequestHandler):
    """A server whose model writes what it should not."""

    def do_GET(self):
        files = {"/": "index.html", "/app.js": "app.js", "/markdown.js": "markdown.js", "/style.css": "style.css"}
        kinds = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
        name = files.get(self.path)
        body = (PAGE / name).read_bytes() if name else b"{}"
        self.reply(kinds[name.rsplit(".")[-1]] if name else "application/json", body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        chunk = json.dumps({"choices": [{"delta": {"content": ATTACKS}}]})
        self.reply("text/event-stream", f"data: {chunk}\n\ndata: [DONE]\n\n".encode())

    def reply(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_an_attack_through_the_whole_page_runs_nothing(browser):
    """Without the real server's policy, so that the page alone must hold."""
    attacker = ThreadingHTTPServer(("127.0.0.1", 0), Attacker)
    threading.Thread(target=attacker.serve_forever, daemon=True).start()
    try:
        browser.open(f"http://127.0.0.1:{attacker.server_port}/")
        ask(browser, "hi")
        browser.wait(f"({LAST} ?? '').includes('not a title')")
        assert browser.run("return window.attacked ?? null") is None
        assert browser.run("return document.querySelectorAll('.message img, .message script, .message svg, .message iframe').length") == 0
    finally:
        attacker.shutdown()


def test_thoughts_are_folded_and_never_markup(page):
    page.run("""
        const chunk = (delta) => `data: ${JSON.stringify({choices: [{delta}]})}\\n\\n`;
        const body = chunk({reasoning_content: arguments[0]}) + chunk({content: 'So be it.'}) + 'data: [DONE]\\n\\n';
        window.fetch = async () => new Response(body);""", ATTACKS)
    ask(page, "hi")
    page.wait(f"{IDLE} && ({LAST} ?? '') === 'So be it.'")
    found = page.run("""
        const details = document.querySelector('.message.assistant details');
        return [details.open, details.querySelector('div').childElementCount, details.querySelector('div').textContent];""")
    assert found == [False, 0, ATTACKS]


def test_errors_are_shown(page):
    page.run("window.fetch = async () => new Response(JSON.stringify({error: {message: 'the queue is full'}}), {status: 429})")
    ask(page, "hi")
    assert page.wait("document.querySelector('[role=alert]')?.textContent") == "the queue is full"
    page.wait(IDLE)


def test_it_fits_a_phone(page):
    page.size(360, 700)
    try:
        setting(page, "max_tokens", 60)
        ask(page, "a" * 120)
        page.wait(f"{IDLE} && ({LAST} ?? '').length > 0")
        assert page.run("return document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
        page.click("#toggle-settings")
        assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        page.size(1000, 800)


def test_everything_has_a_name_and_can_be_reached_by_keyboard(page):
    nameless = page.run("""
        return [...document.querySelectorAll('button, input, textarea')]
            .filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length))
            .map((e) => e.id);""")
    assert nameless == []
    assert page.run("return document.documentElement.lang") == "en"
    assert page.run("return document.querySelectorAll('[tabindex]:not([tabindex=\"0\"])').length") == 0
    # Escape stops, as the button does.
    setting(page, "max_tokens", 900)
    ask(page, "Speak.")
    page.wait(f"({LAST} ?? '').length > 5")
    page.type("body", webdriver.ESCAPE)
    page.wait(IDLE)


def contrast(page):
    """The smallest contrast of text and background, as WCAG defines it."""
    return page.run("""
        const parse = (c) => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
        const light = (c) => { const [r, g, b] = parse(c).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const back = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
            if (!c.endsWith(', 0)') && c !== 'transparent') return c; } return 'rgb(255, 255, 255)'; };
        const nodes = [...document.querySelectorAll('h1, .quiet, button:not(:disabled), .message .content, .who')]
            .filter((e) => e.offsetParent !== null);
        return Math.min(...nodes.map((e) => { const [a, b] = [light(getComputedStyle(e).color), light(back(e))].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05); }));""")


def test_dark_and_light_are_readable(page):
    setting(page, "max_tokens", 4)
    ask(page, "hi")
    page.wait(f"{IDLE} && ({LAST} ?? '').length > 0")
    first = page.run("return getComputedStyle(document.body).backgroundColor")
    assert contrast(page) >= 4.5
    page.click("#theme")
    assert page.run("return getComputedStyle(document.body).backgroundColor") != first
    assert contrast(page) >= 4.5
