// The server: requests, and answers that come as server-sent events.

const ROOT = new URL("..", import.meta.url); // also where a proxy put the page in a folder
const KEY = "umbel.key";
const SILENCE = 90000; // the server pings each 15 s: after this it is gone

/** What went wrong. `kind`: "http", "stream" (told in an answer), "network" or "key". */
export class ApiError extends Error {
  constructor(message, kind, { status = 0, code = null, retryAt = 0 } = {}) {
    super(message);
    Object.assign(this, { kind, status, code, retryAt });
  }

  /** As a conversation keeps it. */
  get told() {
    const { message, kind, status, code, retryAt } = this;
    return { message, kind, status, code, retryAt };
  }
}

let memory = ""; // where the browser keeps nothing

export const key = {
  get() {
    try {
      return sessionStorage.getItem(KEY) ?? memory;
    } catch {
      return memory;
    }
  },
  set(value) {
    memory = value;
    try {
      sessionStorage.setItem(KEY, value);
    } catch {
      // until the page is left, then
    }
  },
};

/** Header values are Latin-1; a key that is not cannot be one of this server's. */
function headers(more) {
  const value = key.get();
  const sendable = /^[\x21-\x7e]+$/.test(value);
  return { ...(sendable ? { Authorization: `Bearer ${value}` } : {}), ...more };
}

async function ask(path, options = {}) {
  let response;
  try {
    const all = { cache: "no-store", ...options, headers: headers(options.headers) };
    response = await fetch(new URL(path, ROOT), all);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("There is no connection to the server.", "network");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The time that a Retry-After header names, as seconds or as a date; 0: none. */
export function retryTime(value, now = Date.now()) {
  if (!value) return 0;
  if (/^\s*\d+\s*$/.test(value)) return now + Number(value) * 1000;
  const time = Date.parse(value);
  return Number.isFinite(time) ? Math.max(time, now) : 0;
}

async function refusal(response) {
  const { status } = response;
  let error = {};
  let text = "";
  try {
    text = await response.text();
    error = JSON.parse(text).error ?? {};
  } catch {
    // a proxy's page, perhaps
  }
  const plain = /^\s*</.test(text) ? "" : text.trim().slice(0, 300);
  const said = typeof error === "string" ? error : error.message;
  const message = said || plain || `The server answered with status ${status}.`;
  const retryAt = retryTime(response.headers.get("Retry-After"));
  const more = { status, code: error.code ?? null, retryAt };
  return new ApiError(message, status === 401 ? "key" : "http", more);
}

async function json(path, options) {
  const response = await ask(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server's answer could not be read.", "network");
  }
}

export async function models(signal) {
  return (await json("v1/models", { signal })).data ?? [];
}

export function live(signal) {
  return json("api/live", { signal });
}

/**
 * Bytes to the data of events, wherever the bytes are cut.
 * https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
 */
export class EventParser {
  constructor() {
    this.decoder = new TextDecoder(); // drops a byte order mark
    this.rest = ""; // of a line
    this.data = [];
  }

  /** The data of the events that have become whole. */
  push(bytes) {
    const text = this.rest + this.decoder.decode(bytes, { stream: true });
    // a CR at the end may be half of a line's end
    const held = text.endsWith("\r") ? 1 : 0;
    const lines = text.slice(0, text.length - held).split(/\r\n|\n|\r/);
    this.rest = lines.pop() + (held ? "\r" : "");
    const events = [];
    for (const line of lines) {
      if (line) this.line(line);
      else if (this.data.length) events.push(this.data.splice(0).join("\n"));
    }
    return events;
  }

  line(line) {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1);
    if (field === "data") this.data.push(value.startsWith(" ") ? value.slice(1) : value);
  }
}

/** The objects of an answer, as they come; it ends after the server's [DONE]. */
export async function* chat(body, signal, silence = SILENCE) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = response.body.getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await next(reader, silence);
      if (done) throw new ApiError("The connection ended before the answer did.", "network");
      for (const data of parser.push(value)) {
        if (data === "[DONE]") return;
        yield checked(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function next(reader, silence) {
  let timer;
  const late = new Promise((_, reject) => {
    const lost = new ApiError("The server has gone silent.", "network");
    timer = setTimeout(() => reject(lost), silence);
  });
  try {
    return await Promise.race([reader.read(), late]);
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError("The connection to the server was lost.", "network");
  } finally {
    clearTimeout(timer);
  }
}

function checked(data) {
  let made;
  try {
    made = JSON.parse(data);
  } catch {
    throw new ApiError("The server sent what is no JSON.", "stream");
  }
  if (!made?.error) return made;
  const { message, code } = made.error;
  throw new ApiError(message || "The server could not go on.", "stream", { code });
}
