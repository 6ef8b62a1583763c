// How answers are made: the fields, the dialog, and what of it goes into a request.

import { h } from "./dom.js";

export const FIELDS = [
  { name: "temperature", label: "Temperature", low: 0, high: 5, step: 0.05, hint: "0 takes the likeliest" },
  { name: "top_p", label: "Top p", low: 0, high: 1, step: 0.01, hint: "share of probability" },
  { name: "top_k", label: "Top k", low: 0, high: 1000000, whole: true, hint: "likeliest tokens kept" },
  { name: "min_p", label: "Min p", low: 0, high: 1, step: 0.01, hint: "least share of the best" },
  { name: "max_tokens", label: "Max tokens", low: 1, high: 10000000, whole: true, hint: "of one answer" },
  { name: "seed", label: "Seed", low: 0, high: Number.MAX_SAFE_INTEGER, whole: true, hint: "same seed, same answer" },
];

/** The value of a text: a number, null where it is empty; throws an Error that says what is wrong. */
export function valueOf(field, text) {
  const { label, low, high, whole } = field;
  if (!text.trim()) return null;
  const value = Number(text.trim().replace(",", "."));
  const good = Number.isFinite(value) && value >= low && value <= high;
  if (good && (!whole || Number.isInteger(value))) return value;
  const kind = whole ? "a whole number" : "a number";
  const bounds = high >= 1e6 ? `of at least ${low}` : `from ${low} to ${high}`;
  throw new Error(`${label} is ${kind} ${bounds}`);
}

/** What of kept settings goes into a request. */
export function sampling(settings) {
  const made = {};
  for (const field of FIELDS) {
    const value = settings[field.name];
    if (typeof value === "number" && value >= field.low && value <= field.high) made[field.name] = value;
  }
  return made;
}

export class SettingsDialog {
  /** `changed(system, settings)` is called when it is closed with what is good. */
  constructor(dialog, changed) {
    Object.assign(this, { dialog, changed });
    this.form = dialog.querySelector("form");
    this.system = dialog.querySelector("#system");
    this.inputs = new Map();
    dialog.querySelector("#fields").append(...FIELDS.map((field) => this.field(field)));
    this.form.addEventListener("submit", (event) => this.submit(event));
    dialog.querySelector("#defaults").addEventListener("click", () => {
      for (const input of this.inputs.values()) input.value = "";
      this.check();
    });
    // left by Esc or beside it, what is good is kept, too
    dialog.addEventListener("close", () => this.keep());
  }

  field(field) {
    const id = `set-${field.name}`;
    const mode = field.whole ? "numeric" : "decimal";
    const props = { id, type: "text", inputmode: mode, placeholder: "default", autocomplete: "off" };
    const input = h("input", { ...props, "aria-describedby": `${id}-hint` });
    input.addEventListener("input", () => this.check());
    this.inputs.set(field, input);
    const label = h("label", { for: id, text: field.label });
    return h("div", {}, label, input, h("small", { id: `${id}-hint`, text: field.hint }));
  }

  open(system, settings) {
    this.system.value = system;
    for (const [field, input] of this.inputs) input.value = settings[field.name] ?? "";
    this.settings = settings;
    this.check();
    this.dialog.showModal();
  }

  /** Marks what cannot be used; whether all can. */
  check() {
    let good = true;
    for (const [field, input] of this.inputs) {
      const hint = input.nextElementSibling;
      try {
        valueOf(field, input.value);
        hint.textContent = field.hint;
        input.removeAttribute("aria-invalid");
      } catch (error) {
        hint.textContent = error.message;
        input.setAttribute("aria-invalid", "true");
        good = false;
      }
    }
    return good;
  }

  submit(event) {
    event.preventDefault();
    if (this.check()) this.dialog.close();
    else this.form.querySelector("[aria-invalid]").focus();
  }

  keep() {
    const made = { ...this.settings };
    for (const [field, input] of this.inputs) {
      try {
        const value = valueOf(field, input.value);
        if (value === null) delete made[field.name];
        else made[field.name] = value;
      } catch {
        // as it was
      }
    }
    this.changed(this.system.value, made);
  }
}
