// The list of conversations.

import { button, h } from "./dom.js";
import * as format from "./format.js";

export class List {
  /** `acts` has open, remove, save; each takes a conversation's id. */
  constructor(root, acts) {
    Object.assign(this, { root, acts });
  }

  show(chats, current, busy) {
    const focused = this.root.contains(document.activeElement)
      ? document.activeElement.closest("[data-id]")?.dataset.id
      : null;
    const groups = new Map();
    for (const chat of chats) {
      const day = format.day(chat.updated);
      if (!groups.has(day)) groups.set(day, []);
      groups.get(day).push(this.item(chat, chat.id === current, busy.has(chat.id)));
    }
    const parts = [...groups].flatMap(([day, items]) => [
      h("h2", { text: day }),
      h("ul", {}, ...items),
    ]);
    const none = h("p", { class: "hint", text: "Conversations are kept in this browser only." });
    this.root.replaceChildren(...(parts.length ? parts : [none]));
    if (focused) this.root.querySelector(`[data-id="${focused}"] .open`)?.focus();
  }

  item(chat, current, busy) {
    const title = chat.title || "New conversation";
    const open = h("button", {
      type: "button",
      class: "open",
      "aria-current": current ? "true" : undefined,
      title,
      text: title,
      on: { click: () => this.acts.open(chat.id) },
    });
    const classes = ["chat", current && "current", busy && "busy"].filter(Boolean).join(" ");
    return h(
      "li",
      { class: classes, "data-id": chat.id },
      open,
      button("save", `Export: ${title}`, () => this.acts.save(chat.id)),
      button("bin", `Delete: ${title}`, () => this.acts.remove(chat.id)),
    );
  }
}
