// The blocks of Markdown: headings, lists, tables, code, ... Text -> plain objects.
//
// Blocks are found from the top down, and none changes for what comes after the next one began:
// so an answer that grows is read again from its last block only.

const DEEPEST = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const DELIMITER = /^\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?$/;
// the end of a text that may become the mark of a block with what comes next
const HELD = /^ *(?:> *)?(?:`{1,2}|~{1,2}|#{1,6}|[-*+]|\d{1,3}[.)]|[-*_]{2})[ \t]?$/;

const blank = (line) => /^\s*$/.test(line);
const indent = (line) => /^ */.exec(line)[0].length;
const untabbed = (line) => line.replace(/^[ \t]+/, (s) => s.replaceAll("\t", "    "));

/** A line without up to n columns of space; tabs behind them stay. */
function without(line, n) {
  let i = 0;
  let left = n;
  for (; left > 0 && (line[i] === " " || line[i] === "\t"); i += 1) {
    left -= line[i] === "\t" ? 4 : 1;
  }
  return " ".repeat(Math.max(-left, 0)) + line.slice(i);
}

/** Whether a line ends the paragraph before it. */
function begins(line) {
  const item = ITEM.exec(line);
  if (item && item[0].length < line.length) return !/^\d/.test(item[2]) || /^1\D/.test(item[2]);
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
}

function rows(lines, i) {
  const head = lines[i];
  const next = lines[i + 1];
  return next !== undefined && head.includes("|") && next.includes("-") && DELIMITER.test(next.trim());
}

export function cells(line) {
  const bare = line.trim().replace(/^\|/, "");
  const found = bare.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  if (found.length > 1 && found[found.length - 1] === "") found.pop();
  return found;
}

class Reader {
  constructor(lines, growing, depth) {
    this.raw = lines; // code keeps its tabs
    this.lines = lines.map(untabbed);
    this.growing = growing;
    this.depth = depth;
    this.i = 0;
    this.found = [];
  }

  run() {
    while (this.i < this.lines.length) {
      const line = this.lines[this.i];
      if (blank(line)) this.i += 1;
      else this.found.push({ line: this.i, ...this.block(line) });
    }
    return this.found;
  }

  inner(lines) {
    const ends = this.growing && this.i >= this.lines.length;
    return new Reader(lines, ends, this.depth + 1).run();
  }

  block(line) {
    const fence = FENCE.exec(line);
    if (fence) return this.code(fence, indent(line));
    const heading = HEADING.exec(line);
    if (heading) {
      this.i += 1;
      const text = (heading[2] ?? "").replace(/(^|[ \t])#+[ \t]*$/, "").trim();
      return { kind: "heading", level: heading[1].length, text };
    }
    if (RULE.test(line)) {
      this.i += 1;
      return { kind: "rule" };
    }
    const deep = this.depth >= DEEPEST;
    if (!deep && QUOTE.test(line)) return this.quote();
    if (!deep && ITEM.test(line)) return this.list();
    if (this.tabular()) return this.table();
    return this.paragraph();
  }

  code([, mark, info], margin) {
    const { lines } = this;
    const end = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}[ \\t]*$`);
    const from = this.i + 1;
    this.i = from;
    while (this.i < lines.length && !end.test(lines[this.i])) this.i += 1;
    let inner = this.raw.slice(from, this.i);
    const open = this.i >= lines.length;
    this.i += 1;
    if (open && this.growing) {
      const partial = inner.length && /^ {0,3}[`~]{1,}$/.test(inner[inner.length - 1]);
      if (partial) inner = inner.slice(0, -1);
    }
    if (margin) inner = inner.map((line) => without(line, margin));
    const language = info.trim().split(/\s/)[0];
    return { kind: "code", language, text: inner.join("\n"), open };
  }

  quote() {
    const inner = [];
    for (; this.i < this.lines.length; this.i += 1) {
      const line = this.lines[this.i];
      const lazy = inner.length && !blank(inner[inner.length - 1]) && !blank(line) && !begins(line);
      if (!QUOTE.test(line) && !lazy) break;
      inner.push(line.replace(QUOTE, ""));
    }
    return { kind: "quote", blocks: this.inner(inner) };
  }

  list() {
    const [, lead, first] = ITEM.exec(this.lines[this.i]);
    const ordered = /\d/.test(first);
    const style = first[first.length - 1];
    const made = { kind: "list", ordered, start: ordered ? parseInt(first, 10) : 1, items: [] };
    made.loose = false;
    for (let gap = false; this.i < this.lines.length; ) {
      const found = ITEM.exec(this.lines[this.i]);
      if (!found || found[1].length > lead.length + 1) break;
      if (!found[2].endsWith(style) || RULE.test(this.lines[this.i])) break;
      made.loose ||= gap;
      const item = this.item(found);
      made.items.push(this.inner(item.lines));
      made.loose ||= item.inside;
      gap = item.gap;
    }
    return made;
  }

  /** The lines of one item; whether there was a blank one in it, or after it. */
  item([whole, { length: lead }, mark]) {
    const width = lead + mark.length + 1;
    const lines = [this.lines[this.i].slice(whole.length)];
    let gap = 0;
    let inside = false;
    for (this.i += 1; this.i < this.lines.length; this.i += 1) {
      const line = this.lines[this.i];
      if (blank(line)) {
        gap += 1;
        continue;
      }
      const margin = indent(line);
      const another = ITEM.test(line);
      // people and models indent by two what should stand under "1. ", too
      const within = margin >= lead + 2;
      const lazy = !gap && !another && !begins(line) && !blank(lines[lines.length - 1]);
      if (!within && !lazy) break;
      inside ||= gap > 0 && !another && !FENCE.test(line.trim());
      for (; gap; gap -= 1) lines.push("");
      lines.push(without(this.raw[this.i], width));
    }
    return { lines, inside, gap: gap > 0 };
  }

  /** A table begins here, or what will be one. */
  tabular() {
    if (rows(this.lines, this.i)) return true;
    if (!this.growing || !/^ {0,3}\|/.test(this.lines[this.i])) return false;
    const rest = this.lines.length - this.i;
    return rest === 1 || (rest === 2 && /^[ \t|:-]*$/.test(this.lines[this.i + 1]));
  }

  table() {
    const head = cells(this.lines[this.i]);
    const marks = cells(this.lines[this.i + 1] ?? "");
    const align = head.map((_, i) => {
      const mark = marks[i] ?? "";
      const right = mark.endsWith(":");
      if (mark.startsWith(":")) return right ? "center" : "left";
      return right ? "right" : "";
    });
    const body = [];
    for (this.i += 2; this.i < this.lines.length; this.i += 1) {
      const line = this.lines[this.i];
      if (blank(line) || (begins(line) && !line.trim().startsWith("|"))) break;
      const found = cells(line);
      body.push(head.map((_, i) => found[i] ?? ""));
    }
    return { kind: "table", head, align, rows: body };
  }

  paragraph() {
    const found = [];
    for (; this.i < this.lines.length; this.i += 1) {
      const line = this.lines[this.i];
      if (blank(line)) break;
      if (found.length && (begins(line) || rows(this.lines, this.i))) break;
      found.push(line.trim());
    }
    return { kind: "paragraph", text: found.join("\n") };
  }
}

/** The blocks of a text; each tells the line that it begins at. */
export function blocks(text, growing = false) {
  const lines = text.split("\n");
  const held = growing && HELD.test(lines[lines.length - 1]);
  const found = new Reader(held ? lines.slice(0, -1) : lines, growing, 0).run();
  // inside code nothing but its end is held
  if (!held || !found[found.length - 1]?.open) return found;
  return new Reader(lines, growing, 0).run();
}
