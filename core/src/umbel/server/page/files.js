// All conversations at once: into a file, from a file, away.

import { sure } from "./dialogs.js";
import { h } from "./dom.js";
import { exported, imported, newId } from "./store.js";

export function save(chats, name) {
  const blob = new Blob([exported(chats)], { type: "application/json" });
  const href = URL.createObjectURL(blob);
  h("a", { href, download: `${name}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
}

export async function load(app, file) {
  let found;
  try {
    found = imported(await file.text());
  } catch (error) {
    app.notices.show("import", error.message, { bad: true, seconds: 15 });
    return;
  }
  for (const chat of found) {
    if (app.store.chats.has(chat.id)) chat.id = newId(); // neither is lost
    app.put(chat);
  }
  const what = found.length === 1 ? "One conversation was" : `${found.length} conversations were`;
  app.notices.show("import", `${what} imported.`, { seconds: 8 });
  app.refresh();
}

export async function clear(app) {
  const chats = app.store.all();
  const count = chats.length === 1 ? "The one that is" : `All ${chats.length} that are`;
  const text = `${count} kept in this browser. This cannot be undone.`;
  if (!chats.length || !(await sure("Delete all conversations?", text))) return;
  for (const { id } of chats) {
    app.running.get(id)?.stop();
    app.store.remove(id);
  }
  app.show(app.fresh());
  app.tellRoom();
}
