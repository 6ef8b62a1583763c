// Conversations and settings, in the browser's localStorage, within a bound.
//
// What cannot be kept stays in memory as long as the page is open, and the page says so.

const PREFIX = "umbel.chat.";
const SETTINGS = "umbel.settings";
export const MOST_CHATS = 200;
export const MOST_CHARACTERS = 4_600_000; // browsers give about 5 million

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}

export function newChat(model, system = "") {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, model, system, messages: [] };
}

/** A title from what was said first. */
export function titleOf(text) {
  const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
  const letters = Array.from(line);
  return letters.length > 60 ? `${letters.slice(0, 59).join("")}…` : line;
}

const isText = (value) => typeof value === "string";

const TEXTS = ["reasoning", "finish", "model"];
const NUMBERS = ["thinking", "thought", "first", "ms"];
const OBJECTS = ["error", "usage", "timings"];

function checkedCall(call) {
  const { name, arguments: given } = call?.function ?? {};
  const told = { name: String(name ?? ""), arguments: String(given ?? "") };
  return { id: String(call?.id ?? ""), type: "function", function: told };
}

/** A message of known fields, each of its type; null where it is none. */
function checkedMessage(data, inner = false) {
  if (!["user", "assistant"].includes(data?.role) || !isText(data.content)) return null;
  const made = { role: data.role, content: data.content };
  for (const name of TEXTS) if (isText(data[name])) made[name] = data[name];
  for (const name of NUMBERS) if (Number.isFinite(data[name])) made[name] = data[name];
  for (const name of OBJECTS) {
    if (data[name] && typeof data[name] === "object") made[name] = data[name];
  }
  for (const name of ["stopped", "cut"]) if (data[name] === true) made[name] = true;
  if (Array.isArray(data.tool_calls)) made.tool_calls = data.tool_calls.map(checkedCall);
  if (inner || !Array.isArray(data.others)) return made;
  const others = data.others.map((one) => checkedMessage(one, true)).filter(Boolean);
  return others.length ? { ...made, others, at: Number(data.at) || 0 } : made;
}

/** A conversation that was read from somewhere, or null where it is none. */
export function checkedChat(data) {
  if (!/^[\w-]{1,64}$/.test(data?.id) || !Array.isArray(data.messages)) return null;
  const messages = data.messages.map((one) => checkedMessage(one));
  if (messages.includes(null)) return null;
  const time = (value) => (Number.isFinite(value) ? value : Date.now());
  return {
    id: data.id,
    title: isText(data.title) ? data.title : "",
    created: time(data.created),
    updated: time(data.updated),
    model: isText(data.model) ? data.model : "",
    system: isText(data.system) ? data.system : "",
    messages,
  };
}

export class Store {
  /** `storage`: localStorage, or null where there is none. */
  constructor(storage) {
    this.storage = storage;
    this.chats = new Map();
    this.sizes = new Map(); // characters of what is kept
    this.unsaved = new Set(); // ids of what is only in memory
    this.unread = 0;
    this.load();
  }

  load() {
    this.unread = 0;
    for (const [id] of this.sizes) if (!this.unsaved.has(id)) this.chats.delete(id);
    this.sizes.clear();
    if (!this.storage) return;
    for (let i = 0; i < this.storage.length; i += 1) {
      const key = this.storage.key(i);
      if (key?.startsWith(PREFIX)) this.read(key);
    }
  }

  /** One entry, as another tab may have written it; whether it is there and good. */
  read(key) {
    const id = key.slice(PREFIX.length);
    const text = this.storage.getItem(key);
    this.sizes.delete(id);
    if (text === null) {
      this.chats.delete(id);
      return false;
    }
    this.sizes.set(id, key.length + text.length);
    let data = null;
    try {
      data = checkedChat(JSON.parse(text));
    } catch {
      // not ours, or cut: it is left as it is
    }
    if (data && data.id === id && !this.unsaved.has(id)) this.chats.set(id, data);
    else if (!data) this.unread += 1;
    return Boolean(data);
  }

  static isChat(key) {
    return key?.startsWith(PREFIX) ?? false;
  }

  all() {
    return [...this.chats.values()].sort((a, b) => b.updated - a.updated);
  }

  /** Keeps a conversation; false where it is now only in memory. */
  put(chat) {
    this.chats.set(chat.id, chat);
    const saved = this.write(chat);
    if (saved) this.unsaved.delete(chat.id);
    else this.unsaved.add(chat.id);
    return saved;
  }

  write(chat) {
    if (!this.storage) return false;
    const key = PREFIX + chat.id;
    const text = JSON.stringify(chat);
    const others = this.used() - (this.sizes.get(chat.id) ?? 0);
    if (others + key.length + text.length > MOST_CHARACTERS) return false;
    if (!this.sizes.has(chat.id) && this.sizes.size >= MOST_CHATS) return false;
    try {
      this.storage.setItem(key, text); // on failure what was there stays
    } catch {
      return false;
    }
    this.sizes.set(chat.id, key.length + text.length);
    return true;
  }

  used() {
    let sum = 0;
    for (const size of this.sizes.values()) sum += size;
    return sum;
  }

  remove(id) {
    this.chats.delete(id);
    this.unsaved.delete(id);
    this.sizes.delete(id);
    this.storage?.removeItem(PREFIX + id);
    this.retry();
  }

  /** There is room again, perhaps. */
  retry() {
    for (const id of [...this.unsaved]) this.put(this.chats.get(id));
  }

  settings() {
    try {
      const data = JSON.parse(this.storage?.getItem(SETTINGS) ?? "{}");
      return data && typeof data === "object" ? data : {};
    } catch {
      return {};
    }
  }

  keep(settings) {
    try {
      this.storage?.setItem(SETTINGS, JSON.stringify(settings));
      return Boolean(this.storage);
    } catch {
      return false;
    }
  }
}

/** The browser's storage, or null: it may be forbidden. */
export function browserStorage() {
  try {
    const storage = window.localStorage;
    storage.getItem("umbel");
    return storage;
  } catch {
    return null;
  }
}

export function exported(chats) {
  return JSON.stringify({ format: "umbel-chats", version: 1, chats }, null, 1);
}

/** Conversations of an exported file; throws an Error that says what is wrong. */
export function imported(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("The file is no JSON.");
  }
  const found = Array.isArray(data?.chats) ? data.chats.map(checkedChat) : [];
  if (!found.length || found.includes(null)) throw new Error("These are no exported conversations.");
  return found;
}
