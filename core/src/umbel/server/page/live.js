// Asks the server once a second how it is, while somebody can see the page.

import * as api from "./api.js";

const EVERY = 1000;
const SLOWEST = 10000;
const PATIENCE = 8000;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Poller {
  /** `heard` gets what the server told, `failed` an ApiError. */
  constructor(heard, failed) {
    Object.assign(this, { heard, failed });
    this.wait = EVERY;
    this.woken = () => {};
    document.addEventListener("visibilitychange", () => document.hidden || this.wake());
    window.addEventListener("online", () => this.wake());
  }

  /** It is asked at once. */
  wake() {
    this.wait = EVERY;
    this.woken();
  }

  async run() {
    for (;;) {
      const woken = new Promise((resolve) => (this.woken = resolve));
      if (document.hidden) await woken;
      const began = performance.now();
      await this.ask();
      const left = Math.max(this.wait - (performance.now() - began), 50);
      await Promise.race([pause(left), woken]);
    }
  }

  async ask() {
    try {
      const told = await api.live(AbortSignal.timeout(PATIENCE));
      this.wait = EVERY;
      this.heard(told);
    } catch (error) {
      this.wait = Math.min(this.wait * 1.6, SLOWEST);
      const lost = new api.ApiError("The server does not answer.", "network");
      this.failed(error instanceof api.ApiError ? error : lost);
    }
  }
}
