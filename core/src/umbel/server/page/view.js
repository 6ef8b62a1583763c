// The conversation that is shown: its messages, and where it is scrolled to.

import { copyBy, h } from "./dom.js";
import { AnswerMessage, UserMessage } from "./message.js";

const NEAR = 80; // pixels from the end that count as at the end

export class View {
  constructor({ log, scroll, bottom, said }, acts) {
    Object.assign(this, { log, scroll, bottom, said, acts });
    this.shown = new Map(); // message -> its element's keeper
    this.pending = new Map(); // that have grown since they were drawn
    this.follow = true;
    scroll.addEventListener("scroll", () => this.scrolled(), { passive: true });
    bottom.addEventListener("click", () => this.toEnd(true));
    log.addEventListener("click", (event) => this.copyCode(event));
    new ResizeObserver(() => this.follow && this.toEnd()).observe(log);
  }

  /** Shows a conversation anew; `growing` is the message that is being written, or null. */
  show(chat, growing) {
    this.chat = chat;
    this.shown.clear();
    this.pending.clear();
    const roots = chat.messages.map((message) => this.make(message, growing).root);
    this.log.replaceChildren(...(roots.length ? roots : [this.empty()]));
    this.follow = true;
    this.toEnd();
  }

  empty() {
    const mark = document.querySelector(".mark").cloneNode(true);
    const text = h("p", { text: "What would you like to know?" });
    const hint = h("p", { class: "hint" });
    hint.append(h("kbd", { text: "Enter" }), " sends, ", h("kbd", { text: "Shift" }), " + ");
    hint.append(h("kbd", { text: "Enter" }), " begins a line, ", h("kbd", { text: "Esc" }), " stops");
    return h("div", { class: "empty" }, mark, text, hint);
  }

  make(message, growing) {
    const kind = message.role === "user" ? UserMessage : AnswerMessage;
    const made = new kind(message, this.acts);
    this.shown.set(message, made);
    made.update(message === growing, message === this.chat.messages.at(-1));
    return made;
  }

  /** A message grew: it is drawn with the next frame. */
  grow(message) {
    if (!this.shown.has(message)) return;
    const waits = this.pending.size > 0;
    this.pending.set(message, true);
    if (waits) return;
    // a page that is not seen gets no frames
    if (document.hidden) setTimeout(() => this.draw(), 250);
    else requestAnimationFrame(() => this.draw());
  }

  draw() {
    for (const message of this.pending.keys()) this.shown.get(message)?.update(true, true);
    this.pending.clear();
    if (this.follow) this.toEnd();
  }

  /** A message is whole. */
  end(message) {
    this.pending.delete(message);
    this.shown.get(message)?.update(false, message === this.chat.messages.at(-1));
    if (this.follow) this.toEnd();
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroll;
    const end = scrollHeight - clientHeight - scrollTop < NEAR;
    // what scrolls up is a person; growing only ever moves the end away
    if (end) this.follow = true;
    else if (scrollTop < (this.top ?? 0) - 2) this.follow = false;
    this.top = scrollTop;
    this.bottom.hidden = end;
  }

  toEnd(smooth = false) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const behavior = smooth && !calm ? "smooth" : "instant";
    this.follow = true;
    this.scroll.scrollTo({ top: this.scroll.scrollHeight, behavior });
  }

  copyCode(event) {
    const target = event.target.closest("[data-copy=code]");
    if (target) copyBy(target, target.closest("figure").querySelector("pre").textContent);
  }

  /** Told to who does not see the page. */
  say(text) {
    this.said.textContent = text;
  }
}
