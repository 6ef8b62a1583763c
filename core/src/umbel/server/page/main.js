// The page: finds its elements, and joins them to what they do.

import { App } from "./app.js";
import { Notices, prepare } from "./dialogs.js";
import { icon, setIcon } from "./dom.js";
import * as files from "./files.js";
import { List } from "./list.js";
import { Poller } from "./live.js";
import { Panel } from "./panel.js";
import { SettingsDialog } from "./settings.js";
import { Sides } from "./sides.js";
import { browserStorage, Store } from "./store.js";
import { View } from "./view.js";

const $ = (id) => document.getElementById(id);
const on = (id, kind, call) => $(id).addEventListener(kind, call);
const DRAFT = "umbel.draft";

for (const one of document.querySelectorAll("[data-icon]")) one.prepend(icon(one.dataset.icon));
document.querySelectorAll("dialog").forEach(prepare);

const input = $("input");
const view = new View(
  { log: $("log"), scroll: $("scroll"), bottom: $("bottom"), said: $("said") },
  {
    again: (message) => app.again(message),
    edit: (message, text) => app.edit(message, text),
    retry: (message) => app.retry(message),
    turn: (message, to) => app.turn(message, to),
  },
);
const list = new List($("list"), {
  open(id) {
    app.open(id);
    if (!sides.leave()) input.focus();
  },
  remove: (id) => app.remove(id),
  save: (id) => files.save([app.store.chats.get(id)], "conversation"),
});
const notices = new Notices($("notices"));
const panel = new Panel($("gauges"), $("pulse-state"));
const poller = new Poller(heard, failed);

const app = new App({
  store: new Store(browserStorage()),
  view,
  list,
  notices,
  poller,
  models: $("model"),
  room: $("room"),
  changed,
});
const sides = new Sides(app.settings.sides, (kept) => app.keep({ ...app.settings, sides: kept }));
const settings = new SettingsDialog($("settings"), (system, made) => app.takeSettings(system, made));

// -- the server's state

function heard(told) {
  notices.drop("lost");
  panel.update(told);
  if (!app.known.length) app.loadModels();
}

function failed(error) {
  if (error.kind === "network") {
    panel.tell("no connection", "lost");
    notices.show("lost", "There is no connection to the server. Trying again …", { bad: true });
    return;
  }
  notices.drop("lost");
  panel.tell(error.kind === "key" ? "wants a key" : `not available (${error.status})`, "lost");
}

// -- the message field

function changed() {
  $("stop").hidden = !app.busy;
  $("send").hidden = app.busy;
  $("send").disabled = !input.value.trim();
  input.placeholder = app.chat.messages.length ? "Reply" : "Write a message";
  document.body.classList.toggle("begun", app.chat.messages.length > 0);
}

function grow() {
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight, innerHeight * 0.4)}px`;
}

function draft(text) {
  try {
    sessionStorage.setItem(DRAFT, text);
  } catch {
    // it is in the field
  }
}

function send(event) {
  event?.preventDefault();
  const text = input.value.trim();
  if (!text || app.busy) return;
  input.value = "";
  draft("");
  grow();
  app.send(text);
}

on("composer", "submit", send);
on("input", "input", () => {
  draft(input.value);
  grow();
  changed();
});
on("input", "keydown", (event) => {
  // while a word is being composed, Enter ends the word
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
    send(event);
  }
});
on("stop", "click", () => {
  app.stop();
  input.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open]")) return;
  if (!sides.leave()) app.stop();
});

// -- the rest of the page

on("new", "click", () => {
  app.show(app.fresh());
  sides.leave();
  input.focus();
});
on("model", "change", (event) => app.takeModel(event.target.value));
on("tune", "click", () => settings.open(app.chat.system, app.settings));
on("export", "click", () => files.save(app.store.all(), "umbel-conversations"));
on("import", "click", () => $("file").click());
on("clear", "click", () => files.clear(app));
on("file", "change", async (event) => {
  const [file] = event.target.files;
  if (file) await files.load(app, file);
  event.target.value = "";
});

const THEMES = { auto: "as the system", light: "light", dark: "dark" };

function showTheme(theme) {
  setIcon($("theme"), theme);
  const label = `Colours: ${THEMES[theme]}`;
  $("theme").title = label;
  $("theme").setAttribute("aria-label", label);
}

on("theme", "click", () => showTheme(window.umbelTheme.next()));
showTheme(window.umbelTheme.get());

window.addEventListener("storage", (event) => app.foreign(event.key));
window.addEventListener("pagehide", () => app.saveNow());
document.addEventListener("visibilitychange", () => document.hidden && app.saveNow());
window.addEventListener("beforeunload", (event) => {
  app.leave();
  if (app.store.unsaved.size) event.preventDefault();
});

app.start();
try {
  input.value = sessionStorage.getItem(DRAFT) ?? "";
} catch {
  // an empty one, then
}
grow();
changed();
app.loadModels();
poller.run();
if (matchMedia("(hover: hover)").matches) input.focus();
document.documentElement.dataset.ready = "true";
