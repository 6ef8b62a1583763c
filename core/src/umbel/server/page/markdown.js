// Markdown as elements, also of a text that still grows.

import { blocks } from "./blocks.js";
import { button, h, morphChildren } from "./dom.js";
import { inline } from "./inline.js";

function code({ language, text }) {
  const label = h("span", { class: "language", text: language || "text" });
  const copy = button("copy", "Copy code", null, { "data-copy": "code" });
  // it scrolls sideways, so the keyboard has to be able to come to it
  const shown = h("pre", { tabindex: 0 }, h("code", { text }));
  return h("figure", { class: "code" }, h("figcaption", {}, label, copy), shown);
}

function list({ ordered, start, items, loose }, growing) {
  const attributes = { class: loose ? "loose" : undefined };
  if (ordered && start !== 1) attributes.start = start;
  const made = items.map((item, i) => entry(item, growing && i === items.length - 1));
  return h(ordered ? "ol" : "ul", attributes, ...made);
}

function entry(item, growing) {
  const made = h("li");
  const task = item[0]?.kind === "paragraph" && /^\[([ xX])\](?=\s)/.exec(item[0].text);
  if (task) {
    made.className = "task";
    const done = task[1] !== " ";
    made.append(h("input", { type: "checkbox", disabled: true, checked: done }));
    item = [{ ...item[0], text: item[0].text.slice(4) }, ...item.slice(1)];
  }
  item.forEach((block, i) => made.append(element(block, growing && i === item.length - 1)));
  return made;
}

function table({ head, align, rows }, growing) {
  const row = (cells, tag, last) =>
    h("tr", {}, ...cells.map((cell, i) => {
      const props = { class: align[i] ? `to-${align[i]}` : undefined };
      return inline(cell, h(tag, tag === "th" ? { scope: "col", ...props } : props), last);
    }));
  const body = rows.map((cells, i) => row(cells, "td", growing && i === rows.length - 1));
  const made = h("table", {}, h("thead", {}, row(head, "th", growing && !rows.length)));
  if (rows.length) made.append(h("tbody", {}, ...body));
  return h("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Table" }, made);
}

function element(block, growing) {
  switch (block.kind) {
    case "heading":
      // the page has an h1 of its own, an answer's headings stand below it
      return inline(block.text, h(`h${Math.min(block.level + 1, 6)}`), growing);
    case "rule":
      return h("hr");
    case "code":
      return code(block);
    case "quote": {
      const last = block.blocks.length - 1;
      const inner = block.blocks.map((b, i) => element(b, growing && i === last));
      return h("blockquote", {}, ...inner);
    }
    case "list":
      return list(block, growing);
    case "table":
      return table(block, growing);
    default:
      return inline(block.text, h("p"), growing);
  }
}

function elements(text, growing) {
  const found = blocks(text, growing);
  const made = found.map((block, i) => element(block, growing && i === found.length - 1));
  return { found, made };
}

/** A text as Markdown in an element; `set` it again when it has grown. */
export class Markdown {
  constructor(root) {
    this.root = root;
    this.text = "";
    this.from = 0; // of the text: before it, blocks are as they will be
    this.closed = 0; // how many there are
  }

  set(text, growing = false) {
    const plain = text.replace(/\r\n?/g, "\n").replaceAll("\0", "\ufffd");
    if (!plain.startsWith(this.text.slice(0, this.from))) this.from = this.closed = 0;
    this.text = plain;
    const tail = plain.slice(this.from);
    const { found, made } = elements(tail, growing);
    morphChildren(this.root, made, this.closed);
    if (!growing || found.length < 2) return;
    const lines = tail.split("\n");
    const last = found[found.length - 1].line;
    for (let i = 0; i < last; i += 1) this.from += lines[i].length + 1;
    this.closed += found.length - 1;
  }
}
