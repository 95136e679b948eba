// Markdown to DOM nodes. The text comes from a model and is not trusted: every piece of it goes
// into a text node, the only elements are those made here, and links lead to http(s) only.

const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+-]*)\s*$/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** A fragment that shows `text`. */
export function render(text) {
  const fragment = document.createDocumentFragment();
  blocks(text.replace(/\r\n?/g, "\n").split("\n"), fragment);
  return fragment;
}

function element(name, parent) {
  const node = document.createElement(name);
  parent.append(node);
  return node;
}

function blocks(lines, parent) {
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (fence) {
      at = code(lines, at, fence, parent);
    } else if (line.trim() === "") {
      at += 1;
    } else if (HEADING.test(line)) {
      const [, marks, title] = HEADING.exec(line);
      // The page's own title is the only one of the first two levels.
      inline(title, element(`h${Math.min(marks.length + 2, 6)}`, parent));
      at += 1;
    } else if (RULE.test(line)) {
      element("hr", parent);
      at += 1;
    } else if (line.startsWith(">")) {
      at = quote(lines, at, parent);
    } else if (ITEM.test(line)) {
      at = list(lines, at, parent);
    } else if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) {
      at = table(lines, at, parent);
    } else {
      at = paragraph(lines, at, parent);
    }
  }
}

function code(lines, at, fence, parent) {
  const [, mark] = fence;
  const content = [];
  at += 1;
  while (at < lines.length && !lines[at].trim().startsWith(mark)) {
    content.push(lines[at]);
    at += 1;
  }
  element("code", element("pre", parent)).textContent = content.join("\n");
  return at + 1;
}

function quote(lines, at, parent) {
  const content = [];
  while (at < lines.length && lines[at].startsWith(">")) {
    content.push(lines[at].replace(/^>\s?/, ""));
    at += 1;
  }
  blocks(content, element("blockquote", parent));
  return at;
}

function list(lines, at, parent) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const node = element(ordered ? "ol" : "ul", parent);
  if (ordered) node.start = parseInt(mark, 10);
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length < indent.length || /\d/.test(item[2]) !== ordered) break;
    const content = [item[3]];
    at += 1;
    // What is indented further belongs to the item, lists in it too.
    while (at < lines.length && lines[at].length > indent.length
      && lines[at].slice(0, indent.length + 2).trim() === "" && lines[at].trim() !== "") {
      content.push(lines[at].slice(indent.length + 2));
      at += 1;
    }
    const entry = element("li", node);
    if (content.length === 1) inline(content[0], entry);
    else blocks(content, entry);
  }
  return at;
}

function table(lines, at, parent) {
  const node = element("table", parent);
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (line, name) => {
    const tr = element("tr", node);
    for (const cell of cells(line)) inline(cell, element(name, tr));
  };
  row(lines[at], "th");
  at += 2;
  while (at < lines.length && lines[at].includes("|")) {
    row(lines[at], "td");
    at += 1;
  }
  return at;
}

function paragraph(lines, at, parent) {
  const content = [];
  do {
    content.push(lines[at]);
    at += 1;
  } while (at < lines.length && lines[at].trim() !== "" && !FENCE.test(lines[at])
    && !HEADING.test(lines[at]) && !ITEM.test(lines[at]) && !lines[at].startsWith(">"));
  inline(content.join("\n"), element("p", parent));
  return at;
}

const SPANS = [
  [/^(`+)([^`](?:[\s\S]*?[^`])?)\1(?!`)/, (match, parent) => {
    element("code", parent).textContent = match[2];
  }],
  [/^\*\*(?=\S)([\s\S]*?\S)\*\*/, (match, parent) => inline(match[1], element("strong", parent))],
  [/^__(?=\S)([\s\S]*?\S)__(?!\w)/, (match, parent) => inline(match[1], element("strong", parent))],
  [/^\*(?=[^\s*])([\s\S]*?[^\s*])\*(?!\*)/, (match, parent) => inline(match[1], element("em", parent))],
  [/^_(?=[^\s_])([\s\S]*?[^\s_])_(?!\w)/, (match, parent) => inline(match[1], element("em", parent))],
  [/^~~(?=\S)([\s\S]*?\S)~~/, (match, parent) => inline(match[1], element("s", parent))],
  [/^\[([^\]\n]+)\]\(([^()\s]+)\)/, (match, parent) => link(match[2], match[1], parent)],
  [/^https?:\/\/[^\s<>"'()\[\]]+[^\s<>"'()\[\].,;:!?]/, (match, parent) => link(match[0], match[0], parent)],
];

function inline(text, parent) {
  let plain = "";
  const flush = () => {
    if (plain) parent.append(document.createTextNode(plain));
    plain = "";
  };
  let at = 0;
  while (at < text.length) {
    if (text[at] === "\\" && /[\\`*_{}\[\]()#+\-.!~>|]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
      continue;
    }
    const rest = text.slice(at);
    const insideWord = /\w/.test(text[at - 1] ?? "");
    const found = /[`*_~\[h]/.test(text[at]) && SPANS.find(([pattern]) =>
      pattern.test(rest) && !(insideWord && (text[at] === "_" || text[at] === "h")));
    if (!found) {
      plain += text[at];
      at += 1;
      continue;
    }
    flush();
    const match = found[0].exec(rest);
    found[1](match, parent);
    at += match[0].length;
  }
  flush();
}

function link(target, label, parent) {
  let url = null;
  try {
    url = new URL(target);
  } catch {
    // Not absolute: shown as text below.
  }
  if (url === null || !["http:", "https:"].includes(url.protocol)) {
    parent.append(document.createTextNode(label === target ? target : `${label} (${target})`));
    return;
  }
  const node = element("a", parent);
  node.href = url.href;
  node.rel = "noopener noreferrer nofollow";
  node.target = "_blank";
  node.textContent = label;
}
