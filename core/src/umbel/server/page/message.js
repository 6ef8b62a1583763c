// One message of a conversation as an element that follows it.

import { button, copyBy, h, icon, morphChildren } from "./dom.js";
import * as format from "./format.js";
import { Markdown } from "./markdown.js";

const TITLES = {
  network: "The connection was lost",
  stream: "The answer broke off",
  key: "The server wants a key",
  page: "Something went wrong here",
};

function errorTitle({ kind, status }) {
  if (status === 429) return "The server is busy";
  if (status === 413) return "That is too long for the server";
  if (status === 503) return "The server cannot answer now";
  return TITLES[kind] ?? (status ? `The server refused it (${status})` : "It failed");
}

/** What a user has said; `acts` has copy, edit, again, retry, turn. */
export class UserMessage {
  constructor(message, acts) {
    Object.assign(this, { message, acts });
    this.said = h("div", { class: "said", text: message.content });
    this.foot = h(
      "footer",
      {},
      button("copy", "Copy message", (event) => copyBy(event.currentTarget, message.content)),
      button("edit", "Edit and send again", () => this.edit(), { "data-act": "edit" }),
    );
    const label = h("h2", { class: "unseen", text: "You" });
    this.root = h("article", { class: "message user" }, label, this.said, this.foot);
  }

  edit() {
    const area = h("textarea", { "aria-label": "Message", rows: 1 });
    area.value = this.message.content;
    const grow = () => {
      area.style.height = "auto";
      area.style.height = `${area.scrollHeight + 2}px`;
    };
    const end = () => {
      this.root.replaceChild(this.said, form);
      this.foot.hidden = false;
      this.root.classList.remove("editing");
      this.foot.querySelector("[data-act=edit]").focus();
    };
    const send = (event) => {
      event.preventDefault();
      if (area.value.trim()) this.acts.edit(this.message, area.value.trim());
    };
    const keys = (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
      if (event.key === "Escape" && !event.isComposing) {
        event.stopPropagation(); // it does not stop an answer, too
        end();
      }
    };
    area.addEventListener("keydown", keys);
    area.addEventListener("input", grow);
    const buttons = h(
      "div",
      { class: "choices" },
      h("button", { type: "button", text: "Cancel", on: { click: end } }),
      h("button", { type: "submit", class: "first", text: "Send again" }),
    );
    const form = h("form", { class: "edit", on: { submit: send } }, area, buttons);
    this.root.replaceChild(form, this.said);
    this.root.classList.add("editing");
    this.foot.hidden = true;
    grow();
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }

  update() {}
}

export class AnswerMessage {
  constructor(message, acts) {
    Object.assign(this, { message, acts });
    this.body = h("div", { class: "prose" });
    this.markdown = new Markdown(this.body);
    this.wait = h("p", { class: "wait" }, h("span", { class: "unseen", text: "Waiting" }));
    this.wait.append(h("i"), h("i"), h("i"));
    this.summary = h("summary");
    this.thoughts = h("div", { class: "prose" });
    this.thinking = new Markdown(this.thoughts);
    this.reasoning = h("details", { class: "reasoning", hidden: true }, this.summary, this.thoughts);
    this.calls = h("div", { class: "calls" });
    this.trouble = h("div");
    this.about = h("span", { class: "meta" });
    this.foot = h("footer", {}, ...this.buttons(), this.about);
    this.label = h("h2", { class: "unseen", text: "Answer" });
    const parts = [this.reasoning, this.wait, this.body, this.calls, this.trouble, this.foot];
    this.root = h("article", { class: "message answer" }, this.label, ...parts);
    this.reasoning.addEventListener("toggle", () => this.think(this.growing));
  }

  buttons() {
    const copy = (event) => copyBy(event.currentTarget, this.message.content);
    this.again = button("again", "Regenerate", () => this.acts.again(this.message));
    this.again.dataset.act = "again";
    this.versions = h("span", { class: "versions", hidden: true });
    this.copy = button("copy", "Copy answer", copy);
    return [this.copy, this.again, this.versions];
  }

  /** Shows it as it is; `growing`: more is to come; `last`: it can be made again. */
  update(growing, last) {
    const { message } = this;
    this.growing = growing;
    const { content, tool_calls: calls = [] } = message;
    const empty = !content && !calls.length;
    this.root.classList.toggle("growing", growing);
    this.root.setAttribute("aria-busy", String(growing));
    this.wait.hidden = !(growing && empty && !message.reasoning);
    this.markdown.set(content, growing);
    this.think(growing);
    morphChildren(this.calls, calls.filter(Boolean).map(callElement));
    this.foot.hidden = growing;
    if (growing) {
      this.trouble.replaceChildren();
      return;
    }
    this.again.hidden = !last || Boolean(message.error && empty);
    this.copy.hidden = !content;
    this.about.textContent = about(message);
    this.choose(last);
    this.fail(message.error);
  }

  think(growing) {
    const { reasoning, thought, content } = this.message;
    this.reasoning.hidden = !reasoning;
    if (!reasoning) return;
    const done = thought >= 500 ? `Thought for ${format.seconds(thought)}` : "Thoughts";
    const label = growing && !content && !thought ? "Thinking" : done;
    if (this.summary.textContent !== label) this.summary.textContent = label;
    this.summary.classList.toggle("busy", label === "Thinking");
    if (this.reasoning.open) this.thinking.set(reasoning, growing && !content);
  }

  choose(last) {
    const { others = [], at = 0 } = this.message;
    this.versions.hidden = !others.length || !last;
    const turn = (to, text, label) => {
      const off = to < 0 || to > others.length;
      const on = { click: () => this.acts.turn(this.message, to) };
      return h("button", { type: "button", class: "plain", disabled: off, "aria-label": label, text, on });
    };
    const place = h("span", { text: `${at + 1}/${others.length + 1}` });
    const [back, on] = [turn(at - 1, "‹", "Answer before"), turn(at + 1, "›", "Next answer")];
    this.versions.replaceChildren(back, place, on);
  }

  fail(error) {
    clearInterval(this.clock);
    this.trouble.replaceChildren();
    if (!error) return;
    const when = h("p", { class: "when" });
    const text = error.kind === "key" ? "Enter key" : "Try again";
    const again = h("button", { type: "button", class: "retry" }, icon("again"), text);
    again.addEventListener("click", () => this.acts.retry(this.message));
    const title = h("strong", { text: errorTitle(error) });
    const said = h("p", { text: String(error.message ?? "") });
    const box = h("div", { class: "error", role: "alert" }, title, said, when, again);
    this.trouble.append(box);
    if (error.retryAt) this.count(error.retryAt, when);
  }

  /** Tells how long the server asked to wait. */
  count(until, when) {
    const tell = () => {
      const left = Math.ceil((until - Date.now()) / 1000);
      when.textContent = left > 0 ? `The server asks to wait ${left} s.` : "You can try again now.";
      if (left <= 0 || !when.isConnected) clearInterval(this.clock);
    };
    when.setAttribute("aria-live", "off");
    tell();
    this.clock = setInterval(tell, 500);
  }
}

function callElement({ function: { name, arguments: given } }) {
  let shown = given;
  try {
    shown = JSON.stringify(JSON.parse(given), null, 2);
  } catch {
    // it still grows, or it is no JSON: as it is
  }
  const copy = button("copy", "Copy call", null, { "data-copy": "code" });
  const label = h("span", { class: "language", text: `Call of ${name}` });
  const pre = h("pre", { tabindex: 0 }, h("code", { text: shown }));
  return h("figure", { class: "code call" }, h("figcaption", {}, label, copy), pre);
}

/** What an answer took, in few words. */
function about({ usage, timings, finish, stopped, cut, ms, first, error }) {
  const words = [];
  if (stopped) words.push("stopped");
  if (cut) words.push("interrupted when the page was left");
  if (finish === "length") words.push("stopped at the token limit");
  if (finish === "content_filter") words.push("filtered");
  const n = usage?.completion_tokens ?? timings?.predicted_n;
  if (Number.isFinite(n) && !error) {
    words.push(`${format.number(n)} ${n === 1 ? "token" : "tokens"}`);
    const own = n > 1 && ms > first ? ((n - 1) / (ms - first)) * 1000 : NaN;
    const speed = timings?.predicted_per_second ?? own;
    if (Number.isFinite(speed) && speed > 0) words.push(`${format.number(speed)} tokens/s`);
  }
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n;
  const prompt = usage?.prompt_tokens;
  if (cached > 0 && prompt > 0) words.push(`${format.percent(cached, prompt)} of the prompt from cache`);
  return words.join(" · ");
}
