// The two sides of the page: beside the conversation, or over it where the screen is narrow.

const NARROW = matchMedia("(max-width: 900px)");
const TIGHT = matchMedia("(max-width: 1180px)"); // there is room for one

export class Sides {
  /** `kept`: {chats, panel}, whether they are open where there is room; `changed` keeps it. */
  constructor(kept, changed) {
    this.kept = { chats: true, panel: !TIGHT.matches, ...kept };
    this.changed = changed;
    this.over = null; // the one that lies over a narrow screen
    this.shade = document.querySelector("#shade");
    this.sides = {
      chats: [document.querySelector("#chats"), document.querySelector("#menu")],
      panel: [document.querySelector("#panel"), document.querySelector("#pulse")],
    };
    for (const [name, [side, opener]] of Object.entries(this.sides)) {
      opener.addEventListener("click", () => this.turn(name));
      side.querySelector(`#${name}-close`).addEventListener("click", () => this.close(name));
    }
    this.shade.addEventListener("click", () => this.leave());
    NARROW.addEventListener("change", () => this.leave());
    this.draw();
  }

  open(name) {
    return NARROW.matches ? this.over === name : Boolean(this.kept[name]);
  }

  turn(name) {
    if (NARROW.matches) this.over = this.over === name ? null : name;
    else {
      this.kept = { ...this.kept, [name]: !this.kept[name] };
      this.changed(this.kept);
    }
    this.draw();
    if (this.over) this.sides[name][0].querySelector("button").focus();
  }

  close(name) {
    if (this.open(name)) this.turn(name);
    this.sides[name][1].focus();
  }

  /** What lies over the page goes; whether something did. */
  leave() {
    const was = this.over;
    this.over = null;
    this.draw();
    if (was) this.sides[was][1].focus();
    return Boolean(was);
  }

  draw() {
    for (const [name, [side, opener]] of Object.entries(this.sides)) {
      const open = this.open(name);
      document.body.classList.toggle(`${name}-open`, open);
      side.inert = !open;
      opener.setAttribute("aria-expanded", String(open));
    }
    this.shade.hidden = !this.over;
    document.querySelector("main").inert = Boolean(this.over);
  }
}
