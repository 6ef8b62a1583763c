"""Pictures for who works on the page: `UMBEL_PAGE_SHOTS=folder pytest ...`; else nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    not os.environ.get("UMBEL_PAGE_SHOTS"), reason="UMBEL_PAGE_SHOTS names no folder"
)
BUSY = """
    const { Panel } = await load("panel.js");
    const place = document.querySelector("#gauges");
    place.replaceChildren();
    const panel = new Panel(place, document.createElement("i"));
    const told = await (await fetch("/api/live")).json();
    const end = told.time;
    for (let i = 0; i < 118; i += 1) {
      const [model] = told.models;
      const wave = Math.sin(i / 9) + Math.sin(i / 3.7) / 2 + Math.random() / 3;
      model.decode_tokens_per_second = i % 60 < 8 ? 0 : 38 + 6 * wave;
      model.prefill_tokens_per_second = i % 30 < 4 ? 700 + 200 * wave : 0;
      model.cells.used = 5200 + 60 * i + (i % 30) * 40;
      told.devices[0].status.temperature_c = 52 + wave;
      told.devices[1].status.temperature_c = 44 + i / 12 + wave;
      told.time = end - 118 + i;
      panel.update(told);
    }
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_busy_panel(page: Any, fake: Any, shots: Callable[[str], None], theme: str) -> None:
    page.prefer(prefers_color_scheme=theme)
    fake.say("An umbel is a *flower head*: many equal rays from one stem.", reasoning="Hm.")
    page.ask("What is an umbel?")
    page.click("#new")
    fake.say("First, a cup of flour.\n\n1. Sieve it.\n2. Add " + "water, then " * 40, wait=0.05)
    page.send("How do I bake bread?")
    page.until(lambda: "Add" in page.text(".answer .prose"))
    page.module(BUSY)
    shots(f"desktop-{theme}-busy")
    page.size(360, 740, phone=True)
    page.click("#pulse")
    shots(f"phone-{theme}-busy-panel")
    page.click("#panel-close")
    page.click("#stop")
    page.whole()
    page.js("document.querySelector('.user [data-act=edit]').click()")
    shots(f"phone-{theme}-edit")


def test_a_key_is_asked_for(page: Any, fake: Any, shots: Callable[[str], None]) -> None:
    fake.key = "secret"
    page.driver.refresh()
    page.until(lambda: page.one("#key").get_attribute("open") is not None)
    shots("desktop-key")


def test_notices(page: Any, fake: Any, shots: Callable[[str], None]) -> None:
    page.ask("Keep me")
    page.js("document.querySelector('.chat .plain:last-child').click()")
    fake.down = True
    page.until(lambda: "no connection" in page.text("#notices"))
    shots("desktop-notices")
    fake.down = False
