// The chat: keeps the messages, streams answers, shows figures.

import { render } from "./markdown.js";

const $ = (id) => document.getElementById(id);
let messages = [];
let running = null;

// ---- settings -------------------------------------------------------------------------------

const REMEMBERED = ["system", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];

function remembered() {
  for (const id of REMEMBERED) {
    const kept = localStorage.getItem(`trelliq.${id}`);
    if (kept !== null) $(id).value = kept;
    $(id).addEventListener("change", () => localStorage.setItem(`trelliq.${id}`, $(id).value));
  }
  // A key lives as long as the tab.
  $("key").value = sessionStorage.getItem("trelliq.key") ?? "";
  $("key").addEventListener("change", () => sessionStorage.setItem("trelliq.key", $("key").value));
  for (const id of ["temperature", "top_p"]) {
    const show = () => { $(`${id}-value`).textContent = $(id).value; };
    $(id).addEventListener("input", show);
    show();
  }
}

function theme() {
  const kept = localStorage.getItem("trelliq.theme");
  if (kept) document.documentElement.dataset.theme = kept;
  $("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("trelliq.theme", next);
  });
}

function headers() {
  const key = $("key").value;
  const all = { "Content-Type": "application/json" };
  if (key) all.Authorization = `Bearer ${key}`;
  return all;
}

function requestBody() {
  const body = { stream: true, stream_options: { include_usage: true }, messages: [] };
  const system = $("system").value.trim();
  if (system) body.messages.push({ role: "system", content: system });
  body.messages.push(...messages);
  for (const id of ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"]) {
    const value = $(id).value;
    if (value !== "" && Number.isFinite(Number(value))) body[id] = Number(value);
  }
  return body;
}

// ---- messages -------------------------------------------------------------------------------

function bubble(role) {
  $("empty").hidden = true;
  const node = document.createElement("article");
  node.className = `message ${role}`;
  const who = document.createElement("p");
  who.className = "who";
  who.textContent = role === "user" ? "You" : "Model";
  const content = document.createElement("div");
  content.className = "content";
  node.append(who, content);
  $("chat").append(node);
  return { node, content };
}

/** Where a model's thoughts are shown, folded, before its answer. They are text, never markup. */
function thoughts(node, content) {
  const details = document.createElement("details");
  details.className = "thoughts";
  const summary = document.createElement("summary");
  summary.textContent = "Thoughts";
  const text = document.createElement("div");
  details.append(summary, text);
  node.insertBefore(details, content);
  return text;
}

function atBottom() {
  const chat = $("chat");
  return chat.scrollHeight - chat.scrollTop - chat.clientHeight < 60;
}

function toBottom() {
  $("chat").scrollTop = $("chat").scrollHeight;
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
  $("regenerate").disabled = is || messages.length === 0;
  $("chat").setAttribute("aria-busy", String(is));
}

// ---- an answer ------------------------------------------------------------------------------

/** The data of server-sent events, one at a time. Characters split between packets are whole. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

async function failure(response) {
  const body = await response.json().catch(() => null);
  return new Error(body?.error?.message ?? `the server answered ${response.status}`);
}

async function answer() {
  const conversation = messages;
  const { node, content } = bubble("assistant");
  const abort = new AbortController();
  running = abort;
  busy(true);
  toBottom();
  let text = "";
  let thought = "";
  let thinking = null;
  let drawn = false;
  let speed = null;
  const draw = () => {
    drawn = false;
    const follow = atBottom();
    content.replaceChildren(render(text));
    if (thought) {
      thinking ??= thoughts(node, content);
      thinking.textContent = thought;
    }
    if (follow) toBottom();
  };
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(requestBody()), signal: abort.signal,
    });
    if (!response.ok) throw await failure(response);
    let first = null;
    let last = null;
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices?.[0]?.delta;
      if (delta?.content || delta?.reasoning_content) {
        text += delta.content ?? "";
        thought += delta.reasoning_content ?? "";
        last = performance.now();
        first ??= last;
        if (!drawn) {
          drawn = true;
          requestAnimationFrame(draw);
        }
      }
      if (chunk.usage && last > first) {
        speed = (chunk.usage.completion_tokens - 1) / ((last - first) / 1000);
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      const note = document.createElement("p");
      note.className = "error";
      note.setAttribute("role", "alert");
      note.textContent = error.message;
      node.append(note);
    }
  }
  draw();
  // A stopped answer stays part of the conversation as far as it came.
  if (text) conversation.push({ role: "assistant", content: text });
  if (running === abort) {
    running = null;
    busy(false);
  }
  if (speed !== null) $("speed").textContent = `${speed.toFixed(1)} tokens/s`;
  $("announce").textContent = text;
  await figures();
}

// ---- what is shown around -------------------------------------------------------------------

async function figures() {
  try {
    const health = await (await fetch("health")).json();
    const mebibytes = (bytes) => `${Math.round(bytes / 1048576)} MiB`;
    $("model").textContent = health.model;
    $("memory").textContent =
      `${mebibytes(health.memory_bytes)} in memory, ${mebibytes(health.kv_bytes)} of it for conversations`;
  } catch {
    $("memory").textContent = "the server does not answer";
  }
}

function ask(text) {
  messages.push({ role: "user", content: text });
  bubble("user").content.textContent = text;
  answer();
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("question").value.trim();
  if (!text || running) return;
  $("question").value = "";
  ask(text);
});

$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});

$("stop").addEventListener("click", () => {
  running?.abort();
  $("question").focus();
});

$("regenerate").addEventListener("click", () => {
  if (running || messages.length === 0) return;
  if (messages.at(-1).role === "assistant") messages.pop();
  $("chat").querySelector(".message.assistant:last-of-type")?.remove();
  answer();
});

$("new-chat").addEventListener("click", () => {
  running?.abort();
  running = null;
  messages = [];
  for (const node of $("chat").querySelectorAll(".message")) node.remove();
  $("empty").hidden = false;
  busy(false);
  $("question").focus();
});

$("toggle-settings").addEventListener("click", () => {
  const settings = $("settings");
  settings.hidden = !settings.hidden;
  $("toggle-settings").setAttribute("aria-expanded", String(!settings.hidden));
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});

remembered();
theme();
busy(false);
figures();
$("question").focus();
