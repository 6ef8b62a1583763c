// Questions to the user, and notices at the top of the page.

import { button, h } from "./dom.js";

/** What stands in all dialogs: buttons that close, and a click beside it. */
export function prepare(dialog) {
  for (const one of dialog.querySelectorAll("[data-close]")) {
    one.addEventListener("click", () => dialog.close());
  }
  dialog.addEventListener("mousedown", (event) => {
    if (event.target === dialog) dialog.close();
  });
}

/** Opens a dialog; gives what `read` gives when its form is sent, null when it is closed. */
function asked(dialog, read) {
  return new Promise((resolve) => {
    const form = dialog.querySelector("form");
    let answer = null;
    const send = (event) => {
      event.preventDefault();
      answer = read();
      dialog.close();
    };
    const end = () => {
      form.removeEventListener("submit", send);
      resolve(answer);
    };
    form.addEventListener("submit", send);
    dialog.addEventListener("close", end, { once: true });
    dialog.showModal();
  });
}

let asking = null; // for the key: once, however many want it

export function askKey(why) {
  const dialog = document.querySelector("#key");
  const input = dialog.querySelector("#key-value");
  if (!asking) {
    dialog.querySelector("#key-why").textContent = why;
    input.value = "";
    asking = asked(dialog, () => input.value.trim()).finally(() => (asking = null));
  }
  return asking;
}

export async function sure(title, text) {
  const dialog = document.querySelector("#sure");
  dialog.querySelector("#sure-title").textContent = title;
  dialog.querySelector("#sure-text").textContent = text;
  return Boolean(await asked(dialog, () => true));
}

/** Lines at the top of the page, one of each name. */
export class Notices {
  constructor(root) {
    this.root = root;
    this.shown = new Map();
  }

  /** `act`: [label, call]; `seconds`: after which it goes. */
  show(name, text, { act = null, seconds = 0, bad = false } = {}) {
    const old = this.shown.get(name);
    if (old?.text === text && !act) return;
    this.drop(name);
    const root = h("div", { class: bad ? "notice bad" : "notice" }, h("span", { text }));
    if (act) {
      const click = () => {
        this.drop(name);
        act[1]();
      };
      root.append(h("button", { type: "button", class: "link", text: act[0], on: { click } }));
    }
    root.append(button("close", "Close this notice", () => root.remove()));
    const timer = seconds ? setTimeout(() => this.drop(name), seconds * 1000) : 0;
    this.shown.set(name, { root, text, timer });
    this.root.append(root);
  }

  drop(name) {
    const old = this.shown.get(name);
    if (!old) return;
    clearTimeout(old.timer);
    old.root.remove();
    this.shown.delete(name);
  }
}
