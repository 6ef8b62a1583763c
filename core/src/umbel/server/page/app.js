// What the page does: conversations are opened, answered, changed and kept.

import * as api from "./api.js";
import { askKey } from "./dialogs.js";
import { h } from "./dom.js";
import { sampling } from "./settings.js";
import * as store from "./store.js";
import { answer, beside, version } from "./turn.js";

const SAVE_EVERY = 1000;

export class App {
  /** `parts`: store, view, list, notices, models (the select), and `changed`, which shows what
   * can be done now. */
  constructor(parts) {
    Object.assign(this, parts);
    this.settings = this.store.settings();
    this.running = new Map(); // a chat's id -> {stop, message}
    this.saving = new Map(); // ids with a timer
    this.known = []; // models
  }

  get busy() {
    return this.running.has(this.chat.id);
  }

  // -- what is shown

  start() {
    let id = null;
    try {
      id = sessionStorage.getItem("umbel.open");
    } catch {
      // the newest one, then
    }
    const found = this.store.chats.get(id) ?? (id === "new" ? null : this.store.all()[0]);
    this.show(found ?? this.fresh());
    if (this.store.unread) {
      this.notices.show("unread", "A kept conversation could not be read; it was left as it is.");
    }
    this.tellRoom();
  }

  fresh() {
    return store.newChat(this.settings.model ?? "", this.settings.system ?? "");
  }

  show(chat) {
    this.chat = chat;
    this.view.show(chat, this.running.get(chat.id)?.message ?? null);
    try {
      sessionStorage.setItem("umbel.open", chat.messages.length ? chat.id : "new");
    } catch {
      // only for a reload
    }
    this.chooseModel();
    this.refresh();
  }

  refresh() {
    document.title = this.chat.title ? `${this.chat.title} · Umbel` : "Umbel";
    this.list.show(this.store.all(), this.chat.id, this.running);
    this.changed();
  }

  open(id) {
    const chat = this.store.chats.get(id);
    if (chat) this.show(chat);
  }

  // -- models and keys

  async loadModels() {
    if (this.loading) return;
    this.loading = true;
    const error = await this.fetchModels();
    this.loading = false;
    if (error?.kind === "key" && (await this.wantKey(error))) await this.loadModels();
    else if (error?.kind === "http") this.notices.show("models", error.message, { bad: true });
    this.chooseModel();
  }

  /** What went wrong, or nothing. */
  async fetchModels() {
    try {
      this.known = (await api.models()).map((one) => String(one.id));
      this.notices.drop("models");
      return null;
    } catch (error) {
      return error;
    }
  }

  chooseModel() {
    const wanted = [this.chat.model, this.settings.model, this.known[0]];
    const chosen = wanted.find((id) => this.known.includes(id)) ?? "";
    const ids = this.known.length ? this.known : [""];
    const options = ids.map((id) => h("option", { value: id, text: id || "no model yet" }));
    this.models.replaceChildren(...options);
    this.models.value = chosen;
    this.models.disabled = this.known.length < 2;
  }

  takeModel(id) {
    this.chat.model = id;
    if (this.chat.messages.length) this.put(this.chat);
    this.keep({ ...this.settings, model: id });
  }

  /** Asks for a key; whether there is a new one. */
  async wantKey(error) {
    const given = await askKey(error.message);
    if (!given) return false;
    api.key.set(given);
    this.poller.wake();
    return true;
  }

  // -- turns

  async send(text) {
    if (this.busy || !text.trim()) return;
    const { chat } = this;
    chat.messages.push({ role: "user", content: text });
    if (!chat.title) chat.title = store.titleOf(text);
    await this.answer(chat, { role: "assistant", content: "" });
  }

  /** Writes an answer at the end of a conversation. */
  async answer(chat, message) {
    const controller = new AbortController();
    this.running.set(chat.id, { stop: () => controller.abort(), message });
    message.cut = true; // what is kept until it is whole
    chat.messages.push(message);
    chat.model = this.models.value || chat.model;
    chat.updated = Date.now();
    this.put(chat);
    if (chat === this.chat) this.show(chat);
    this.view.say("");
    await answer(chat, message, sampling(this.settings), controller.signal, () => {
      this.view.grow(message);
      this.saveSoon(chat);
    });
    // a page that is left loses its connections first: what is kept says that it was cut
    if (this.leaving && message.error?.kind === "network") return;
    this.running.delete(chat.id);
    if (this.store.chats.has(chat.id)) this.put(chat);
    this.view.end(message);
    this.refresh();
    await this.ended(chat, message);
  }

  async ended(chat, message) {
    const { error, stopped } = message;
    this.view.say(error ? `Failed: ${error.message}` : stopped ? "Stopped" : "Answer complete");
    if (error?.kind === "network") this.poller.wake();
    if (error?.kind !== "key" || chat !== this.chat) return;
    if (await this.wantKey(error)) {
      if (!this.known.length) await this.loadModels();
      await this.again(message, chat);
    }
  }

  stop() {
    const found = this.running.get(this.chat.id);
    found?.stop();
    return Boolean(found);
  }

  /** The last answer once more; the old one stays beside the new one. */
  async again(message, chat = this.chat) {
    if (this.running.has(chat.id) || chat.messages.at(-1) !== message) return;
    chat.messages.pop();
    await this.answer(chat, beside(message));
  }

  async retry(message) {
    const { chat } = this;
    if (message.error?.kind === "key" && !(await this.wantKey(message.error))) return;
    if (chat.messages.at(-1) === message) await this.again(message, chat);
    else {
      const before = chat.messages[chat.messages.indexOf(message) - 1];
      if (before?.role === "user") await this.edit(before, before.content);
    }
  }

  turn(message, to) {
    const at = this.chat.messages.indexOf(message);
    if (at < 0 || this.busy) return;
    this.chat.messages[at] = version(message, to);
    this.put(this.chat);
    this.show(this.chat);
  }

  /** Says something else in place of a message; what followed can be brought back. */
  async edit(message, text) {
    const { chat } = this;
    const at = chat.messages.indexOf(message);
    if (at < 0 || this.busy) return;
    const before = chat.messages;
    const title = chat.title;
    chat.messages = [...before.slice(0, at), { role: "user", content: text }];
    if (at === 0) chat.title = store.titleOf(text);
    const back = () => {
      this.running.get(chat.id)?.stop();
      Object.assign(chat, { messages: before, title });
      this.put(chat);
      if (chat === this.chat) this.show(chat);
    };
    const act = ["Undo", back];
    this.notices.show("edit", "What followed the message was replaced.", { act, seconds: 20 });
    await this.answer(chat, { role: "assistant", content: "" });
  }

  // -- keeping

  put(chat) {
    clearTimeout(this.saving.get(chat.id));
    this.saving.delete(chat.id);
    this.store.put(chat);
    this.tellRoom();
  }

  saveSoon(chat) {
    if (this.saving.has(chat.id) || !this.store.chats.has(chat.id)) return;
    this.saving.set(chat.id, setTimeout(() => this.put(chat), SAVE_EVERY));
  }

  saveNow() {
    if (this.leaving) return;
    for (const id of [...this.saving.keys()]) {
      const chat = this.store.chats.get(id);
      if (chat) this.put(chat);
    }
  }

  /** The page is about to be left, it seems; unless somebody stays. */
  leave() {
    this.saveNow();
    this.leaving = true;
    setTimeout(() => (this.leaving = false), 3000);
  }

  tellRoom() {
    const n = this.store.unsaved.size;
    const share = this.store.used() / store.MOST_CHARACTERS;
    this.room.textContent = share > 0.5 ? `${Math.round(100 * share)} % full` : "";
    if (!n) {
      this.notices.drop("room");
      return;
    }
    const which = n === 1 ? "One conversation is" : `${n} conversations are`;
    const why = this.store.storage ? "The browser's storage is full" : "The browser keeps nothing";
    const text = `${why}. ${which} lost when this page is closed: export or delete some.`;
    this.notices.show("room", text, { bad: true });
  }

  keep(settings) {
    this.settings = settings;
    this.store.keep(settings);
  }

  takeSettings(system, settings) {
    this.keep({ ...settings, system });
    if (this.chat.system === system) return;
    this.chat.system = system;
    if (this.chat.messages.length) this.put(this.chat);
  }

  remove(id) {
    const chat = this.store.chats.get(id);
    if (!chat) return;
    this.running.get(id)?.stop();
    this.store.remove(id);
    const act = ["Undo", () => (this.put(chat), this.show(chat))];
    this.notices.show("removed", `“${chat.title}” was deleted.`, { act, seconds: 15 });
    if (chat === this.chat) this.show(this.store.all()[0] ?? this.fresh());
    else this.refresh();
    this.tellRoom();
  }

  /** Another tab wrote or deleted one. */
  foreign(key) {
    const id = key?.slice(key.lastIndexOf(".") + 1);
    if (key === null) this.store.load();
    else if (!store.Store.isChat(key) || this.running.has(id)) return;
    else this.store.read(key);
    const now = this.store.chats.get(this.chat.id);
    if (now && now !== this.chat && !this.busy) this.show(now);
    else this.refresh();
  }
}
