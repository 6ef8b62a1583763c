// The panel at the side: what models and devices do now.

import { h, morphChildren } from "./dom.js";
import * as format from "./format.js";
import { Spark } from "./spark.js";

const rate = (n) => `${format.number(n)} tokens/s`;

/** A bar of parts of a whole. */
class Bar {
  constructor(...names) {
    this.parts = names.map((name) => h("i", { class: name }));
    this.root = h("div", { class: "meter", "aria-hidden": "true" }, ...this.parts);
  }

  set(...shares) {
    shares.forEach((share, i) => {
      const bounded = Math.min(Math.max(share || 0, 0), 1);
      this.parts[i].style.width = `${(100 * bounded).toFixed(1)}%`;
    });
  }
}

function card(title) {
  const made = { state: h("span", { class: "state" }), body: h("div") };
  made.title = h("h3", { text: title });
  made.root = h("section", { class: "card" }, h("div", { class: "row" }, made.title, made.state));
  made.root.append(made.body);
  return made;
}

class ModelCard {
  constructor(id) {
    this.card = card(id);
    this.root = this.card.root;
    this.writing = new Spark("Generating", rate);
    this.reading = new Spark("Reading prompts", rate);
    this.cells = new Spark("Cache", (share) => `${Math.round(100 * share)} %`, { high: 1 });
    this.bar = new Bar("used", "cached");
    this.saved = h("output", { text: "–" });
    const saved = h("div", { class: "row" }, h("span", { text: "Prompts cached" }), this.saved);
    this.about = h("p", { class: "about" });
    this.cells.root.append(this.bar.root);
    const gauges = [this.writing, this.reading, this.cells].map((one) => one.root);
    this.card.body.append(...gauges, saved, this.about);
  }

  update(time, model) {
    const { running = 0, waiting = 0, loaded } = model;
    const busy = [running && `${running} running`, waiting && `${waiting} waiting`];
    const state = busy.filter(Boolean).join(", ") || "idle";
    this.card.state.textContent = loaded ? state : "not loaded";
    this.card.state.classList.toggle("busy", loaded && running > 0);
    this.card.body.hidden = !loaded;
    if (!loaded) return;
    this.writing.add(time, model.decode_tokens_per_second ?? 0);
    this.reading.add(time, model.prefill_tokens_per_second ?? 0);
    const { total = 0, used = 0, cached = 0 } = model.cells ?? {};
    const told = `${format.number(used)} of ${format.number(total)} cells`;
    this.cells.root.hidden = !total;
    this.cells.add(time, total ? used / total : 0, told);
    this.bar.set(used / total, Math.min(cached, used) / total);
    this.bar.root.title = `${format.number(cached)} cells are kept for prompts that begin alike`;
    const [prompt, kept] = [model.prompt_tokens, model.cached_tokens];
    this.saved.value = prompt ? `${format.percent(kept, prompt)} of ${format.number(prompt)}` : "–";
    const places = (model.devices ?? []).join(", ");
    this.about.textContent = `Context ${format.number(model.ctx)} · ${model.parallel} at once · ${places}`;
  }
}

class DeviceCard {
  constructor({ name }) {
    this.card = card(name);
    this.root = this.card.root;
    this.about = h("p", { class: "about" });
    this.sparks = new Map();
    this.gauges = h("div");
    this.bar = new Bar("used");
    this.memory = h("output");
    const row = h("div", { class: "row" }, h("span", { text: "Memory" }), this.memory);
    this.room = h("div", { class: "gauge", hidden: true }, row, this.bar.root);
    this.rest = h("dl");
    this.more = h("details", { hidden: true }, h("summary", { text: "More" }), this.rest);
    this.card.body.append(this.about, this.gauges, this.room, this.more);
  }

  update(time, device) {
    const { description = "", simulated = false, status = {} } = device;
    this.about.textContent = description;
    this.card.state.textContent = simulated ? "simulated" : "";
    this.card.state.classList.toggle("simulated", simulated);
    const rest = new Map(Object.entries(status));
    this.fill(rest);
    for (const [key, value] of [...rest]) {
      const kind = typeof value === "number" ? format.meaning(key) : "";
      if (kind !== "heat" && kind !== "share") continue;
      rest.delete(key);
      this.spark(key, kind).add(time, value);
    }
    this.list(rest);
  }

  /** Memory as a bar, where both ends of it are told. */
  fill(rest) {
    const total = rest.get("memory_total") ?? rest.get("memory_total_bytes");
    const free = rest.get("memory_free") ?? rest.get("memory_free_bytes");
    const known = Number.isFinite(total) && total > 0 && Number.isFinite(free);
    this.room.hidden = !known;
    if (!known) return;
    for (const key of ["memory_total", "memory_free"]) {
      rest.delete(key);
      rest.delete(`${key}_bytes`);
    }
    this.memory.value = `${format.bytes(total - free)} of ${format.bytes(total)}`;
    this.bar.set((total - free) / total);
  }

  spark(key, kind) {
    if (!this.sparks.has(key)) {
      const scale = kind === "heat" ? { low: 20 } : { high: 100 };
      const label = format.name(key);
      const title = label[0].toUpperCase() + label.slice(1);
      const made = new Spark(title, (value) => format.status(key, value), scale);
      this.sparks.set(key, made);
      this.gauges.append(made.root);
    }
    return this.sparks.get(key);
  }

  list(rest) {
    this.more.hidden = !rest.size;
    const made = [...rest].flatMap(([key, value]) => [
      h("dt", { text: format.name(key) }),
      h("dd", { text: format.status(key, value) }),
    ]);
    morphChildren(this.rest, made);
  }
}

export class Panel {
  constructor(root, state) {
    Object.assign(this, { root, state });
    this.models = new Map();
    this.devices = new Map();
    this.places = [h("div"), h("div")];
    root.append(...this.places);
  }

  update({ time, models = [], devices = [] }) {
    const now = Number.isFinite(time) ? time : Date.now() / 1000;
    this.tell("live", "live");
    const used = new Set(models.flatMap((one) => one.devices ?? []));
    const sorted = [...devices].sort((a, b) => used.has(b.name) - used.has(a.name));
    this.cards(this.models, this.places[0], now, models, "id", (one) => new ModelCard(one.id));
    this.cards(this.devices, this.places[1], now, sorted, "name", (one) => new DeviceCard(one));
  }

  cards(known, place, now, told, name, make) {
    const seen = new Set(told.map((one) => one[name]));
    for (const [id, one] of known) {
      if (seen.has(id)) continue;
      one.root.remove();
      known.delete(id);
    }
    for (const one of told) {
      const id = one[name];
      if (!known.has(id)) {
        known.set(id, make(one));
        place.append(known.get(id).root);
      }
      known.get(id).update(now, one);
    }
  }

  tell(text, kind) {
    this.state.textContent = text;
    this.state.dataset.kind = kind;
    this.root.classList.toggle("stale", kind !== "live");
  }
}
