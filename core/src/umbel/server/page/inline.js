// What stands inside a paragraph of Markdown: emphasis, code, links. Text -> nodes -> elements.
//
// It takes time in proportion to the text. Of a text that still grows, what has been opened at
// its end is shown as if it were closed, so that nothing jumps when the rest has come.

import { h } from "./dom.js";

const SAFE = new Set(["http:", "https:", "mailto:"]);
const DEEPEST = 24;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

/** The address, if it is one that may be followed; else null. */
export function safeLink(address) {
  try {
    const url = new URL(address.trim());
    return SAFE.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const space = (c) => c === undefined || /\s/.test(c);
const mark = (c) => c !== undefined && /[\p{P}\p{S}]/u.test(c);
const URL_AT = /https?:\/\/[^\s<>"`\\^{}|]{1,2000}/y;
const ANGLE_AT = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const BREAK_AT = /<br\s{0,3}\/?>/iy;
const ENTITY_AT = /&(?:(amp|lt|gt|quot|apos|nbsp)|#(\d{1,7}));/y;
const TARGET_AT = /\(\s{0,9}(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\([^\s()]*\))*))(?:\s{1,9}(?:"[^"\n]*"|'[^'\n]*'))?\s{0,9}\)/y;
const PARTIAL_TARGET_AT = /\([^\s()]*(?:\s+"[^"\n]*)?$/y;

function at(pattern, text, i) {
  pattern.lastIndex = i;
  return pattern.exec(text);
}

class Scanner {
  constructor(text, growing) {
    this.text = text;
    this.growing = growing;
    this.i = 0;
    this.frames = [{ opener: "", children: [] }];
    this.unclosed = new Set(); // lengths of backtick runs that have no partner
  }

  get top() {
    return this.frames[this.frames.length - 1];
  }

  add(node) {
    const to = this.top.children;
    const last = to.length - 1;
    if (typeof node === "string" && typeof to[last] === "string") to[last] += node;
    else to.push(node);
  }

  push(frame) {
    if (this.frames.length > DEEPEST) this.add(frame.opener.repeat(frame.n ?? 1));
    else this.frames.push({ ...frame, children: [] });
  }

  /** The topmost frame was no emphasis and no link: its opener is text. */
  flatten() {
    const frame = this.frames.pop();
    this.add(frame.opener.repeat(frame.n ?? 1));
    for (const child of frame.children) this.add(child);
  }

  find(opens) {
    let k = this.frames.length - 1;
    while (k > 0 && !opens(this.frames[k])) k -= 1;
    return k;
  }

  run() {
    const { text } = this;
    const plain = /[^\\`*_~![\]<&\nh]+|h(?!ttps?:\/\/)/y;
    while (this.i < text.length) {
      const found = at(plain, text, this.i);
      if (found) {
        this.add(found[0]);
        this.i += found[0].length;
      } else this.special(text[this.i]);
    }
    while (this.frames.length > 1) this.finish();
    return this.frames[0].children;
  }

  finish() {
    const { opener, n, guess, children, from } = this.top;
    if (this.growing && from && this.text.length - from < 60) {
      this.frames.pop(); // it may become a link
      for (const child of children) this.add(child);
      return;
    }
    if (!this.growing || !guess || !children.length) {
      this.flatten();
      return;
    }
    this.frames.pop();
    this.add({ kind: opener === "~" ? "del" : n > 1 ? "strong" : "em", children });
  }

  special(c) {
    if (c === "\\") this.escape();
    else if (c === "`") this.code();
    else if (c === "*" || c === "_" || c === "~") this.emphasis(c);
    else if (c === "!" && this.text[this.i + 1] === "[") this.open("![");
    else if (c === "[") this.open("[");
    else if (c === "]") this.closeLink();
    else if (c === "\n") this.take(1, { kind: "br" });
    else if (c === "<") this.angle();
    else if (c === "&") this.entity();
    else if (c === "h") this.bareLink();
    else this.take(1, c);
  }

  take(n, node) {
    this.add(node);
    this.i += n;
  }

  open(opener) {
    this.i += opener.length;
    this.push({ opener, from: this.i });
  }

  escape() {
    const next = this.text[this.i + 1];
    if (next === "\n") this.take(2, { kind: "br" });
    else if (next !== undefined && /[!-/:-@[-`{-~]/.test(next)) this.take(2, next);
    else this.take(1, "\\");
  }

  code() {
    const n = this.length("`");
    const from = this.i + n;
    const end = this.unclosed.has(n) ? -1 : this.partner(from, n);
    if (end < 0) {
      this.unclosed.add(n);
      if (!this.growing) this.take(n, "`".repeat(n));
      else {
        if (from < this.text.length) this.add({ kind: "code", text: this.text.slice(from) });
        this.i = this.text.length;
      }
      return;
    }
    let inner = this.text.slice(from, end).replaceAll("\n", " ");
    if (inner.startsWith(" ") && inner.endsWith(" ") && inner.trim()) inner = inner.slice(1, -1);
    this.add({ kind: "code", text: inner });
    this.i = end + n;
  }

  length(c) {
    let n = 1;
    while (this.text[this.i + n] === c) n += 1;
    return n;
  }

  partner(from, n) {
    const runs = /`+/g;
    runs.lastIndex = from;
    for (let found = runs.exec(this.text); found; found = runs.exec(this.text)) {
      if (found[0].length === n) return found.index;
    }
    return -1;
  }

  emphasis(c) {
    let n = this.length(c);
    const before = this.i ? this.text[this.i - 1] : undefined;
    const after = this.text[this.i + n];
    this.i += n;
    if (this.growing && after === undefined && n < 4) {
      // what it is will be seen soon; where it closes something, that is closed without it, too
      const k = this.find((f) => f.opener === c);
      if (k && this.frames[k].n <= n) this.close(c, n);
      return;
    }
    const left = !space(after) && (!mark(after) || space(before) || mark(before));
    const right = !space(before) && (!mark(before) || space(after) || mark(after));
    const word = c === "_";
    const opens = left && (!word || !right || mark(before));
    const closes = right && (!word || !left || mark(after));
    if (c === "~" && n !== 2) {
      this.add(c.repeat(n));
      return;
    }
    if (closes) n = this.close(c, n);
    if (!n) return;
    if (opens && n < 4) this.push({ opener: c, n, guess: !right || space(before) || mark(before) });
    else this.add(c.repeat(n));
  }

  /** Closes what is open, as far as n markers reach; how many are left. */
  close(c, n) {
    let left = n;
    while (left) {
      const k = this.find((f) => f.opener === c);
      if (!k || (c === "~" && left < 2)) return left;
      while (this.frames.length > k + 1) this.flatten();
      const frame = this.top;
      const used = frame.n > 1 && left > 1 ? 2 : 1;
      const kind = c === "~" ? "del" : used > 1 ? "strong" : "em";
      const node = { kind, children: frame.children };
      frame.n -= used;
      left -= used;
      frame.children = frame.n ? [node] : [];
      if (!frame.n) {
        this.frames.pop();
        this.add(node);
      }
    }
    return 0;
  }

  closeLink() {
    const k = this.find((f) => f.opener === "[" || f.opener === "![");
    const last = this.i + 1 === this.text.length;
    if (!k || (this.growing && last)) {
      this.take(1, k ? "" : "]"); // it may become a link
      return;
    }
    while (this.frames.length > k + 1) this.flatten();
    const target = at(TARGET_AT, this.text, this.i + 1);
    const partial = this.growing && at(PARTIAL_TARGET_AT, this.text, this.i + 1);
    const href = target && safeLink((target[1] ?? target[2]).replace(/\\([!-/:-@[-`{-~])/g, "$1"));
    if (href === null && !partial) {
      this.flatten(); // no link, or one that is not followed: as it was written
      this.take(1, "]");
      if (target) this.take(target[0].length, target[0]);
      return;
    }
    const { opener, children } = this.frames.pop();
    const image = opener === "![";
    const shown = image && !children.length ? ["image"] : children;
    this.add({ kind: "link", href, image, children: shown });
    this.i = target ? this.i + 1 + target[0].length : this.text.length;
  }

  angle() {
    const found = at(ANGLE_AT, this.text, this.i);
    const href = found && safeLink(found[1]);
    const line = at(BREAK_AT, this.text, this.i);
    if (href) this.take(found[0].length, { kind: "link", href, children: [found[1]] });
    else if (line) this.take(line[0].length, { kind: "br" });
    else this.take(1, "<");
  }

  entity() {
    const found = at(ENTITY_AT, this.text, this.i);
    if (!found) {
      this.take(1, "&");
      return;
    }
    const [whole, called, digits] = found;
    const code = Number(digits);
    const good = code > 31 && code < 0x110000 && !(code >= 0xd800 && code < 0xe000);
    const numbered = good ? String.fromCodePoint(code) : "\ufffd";
    this.take(whole.length, called ? ENTITIES[called] : numbered);
  }

  bareLink() {
    const found = at(URL_AT, this.text, this.i);
    let address = (found?.[0] ?? "").replace(/[.,:;!?'*_~]+$/, "");
    if (/[)\]]$/.test(address) && !/[([]/.test(address)) address = address.replace(/[)\].,]+$/, "");
    const href = !/\w/.test(this.text[this.i - 1] ?? "") && safeLink(address);
    if (href) {
      this.take(address.length, { kind: "link", href, children: [address] });
    } else this.take(1, "h");
  }
}

function build(nodes, into, linked) {
  for (const node of nodes) {
    if (typeof node === "string") into.append(node);
    else if (node.kind === "code") into.append(h("code", { text: node.text }));
    else if (node.kind === "br") into.append(h("br"));
    else if (node.kind === "link" && (linked || !node.href)) build(node.children, into, linked);
    else if (node.kind === "link") into.append(build(node.children, anchor(node), true));
    else into.append(build(node.children, h(node.kind), linked));
  }
  return into;
}

function anchor({ href, image }) {
  const rel = "noopener noreferrer";
  return h("a", { href, rel, target: "_blank", class: image ? "image" : undefined });
}

/** Puts the elements of a text into an element, and gives it back. */
export function inline(text, into, growing = false) {
  return build(new Scanner(text, growing).run(), into, false);
}
