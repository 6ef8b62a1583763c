// Elements are made here and nowhere from text: what a model writes never becomes HTML.

export function h(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else if (name === "on") {
      for (const [kind, call] of Object.entries(value)) made.addEventListener(kind, call);
    } else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((one) => one !== null && one !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V6M6 12l6-6 6 6",
  stop: "M8 8h8v8H8z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  done: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M5 19h3.5L19 8.5 15.5 5 5 15.5zM13 7.5l3.5 3.5",
  again: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  bin: "M5 7h14M9.5 7V5h5v2M7 7l.8 12h8.4L17 7",
  save: "M12 5v10M7.5 11l4.5 4.5 4.5-4.5M5 19h14",
  load: "M12 15.5V5M7.5 9.5L12 5l4.5 4.5M5 19h14",
  tune: "M4 8h8M18 8h2M4 16h2M12 16h8M15 5.5v5M9 13.5v5",
  pulse: "M3 12h4l2.5-6 4.5 12 2.5-6H21",
  close: "M6 6l12 12M18 6L6 18",
  down: "M12 5v13M6 12.5l6 6 6-6",
  auto: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  light: "M12 8.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M18.4 5.6L17 7M7 17l-1.4 1.4",
  dark: "M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z",
};

export function icon(name) {
  const path = svg("path", { d: ICONS[name] });
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, path);
}

/** A button of an icon, whose name is told to who cannot see it. */
export function button(name, label, click, more = {}) {
  const { class: extra = "", ...props } = more;
  const on = click ? { on: { click } } : {};
  const all = { type: "button", class: `plain ${extra}`, title: label, "aria-label": label };
  return h("button", { ...all, ...on, ...props }, icon(name));
}

export function setIcon(target, name) {
  target.replaceChildren(icon(name));
}

/** Makes `old` like `made`, changing as little as can be: selections and focus stay. */
export function morph(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName) {
    old.replaceWith(made);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (made.data === old.data) return;
    if (made.data.startsWith(old.data)) old.appendData(made.data.slice(old.data.length));
    else old.data = made.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!made.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of made.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, [...made.childNodes]);
}

/** The same of children, from the one with number `first` on. */
export function morphChildren(parent, made, first = 0) {
  const old = [...parent.childNodes].slice(first);
  made.forEach((one, i) => (i < old.length ? morph(old[i], one) : parent.append(one)));
  for (const one of old.slice(made.length)) one.remove();
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // no permission, or no secure context: the old way
    const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    try {
      return document.execCommand("copy");
    } finally {
      area.remove();
    }
  }
}

/** Copies, and shows on the button that it was done. */
export async function copyBy(target, text) {
  const focused = document.activeElement;
  const done = await copyText(text);
  focused?.focus?.();
  setIcon(target, done ? "done" : "close");
  target.classList.toggle("worked", done);
  setTimeout(() => {
    setIcon(target, "copy");
    target.classList.remove("worked");
  }, 1500);
}
