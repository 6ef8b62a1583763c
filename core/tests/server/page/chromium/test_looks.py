"""How it looks: on a phone, light and dark, the panel; and what it takes to use it by keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

RICH = """Here is a small comparison of **three ways** to store a matrix, and the code for one.

| Layout | Bytes per weight | Reads well | Remark |
|:--|--:|:-:|:--|
| row major | 4 | yes | plain `float32` |
| Q8_0 | 1.06 | yes | 32 weights share a scale |
| Q4_0 | 0.56 | mostly | halves it once more, at a price in accuracy |

### The product

```python
def product(rows: list[list[float]], x: list[float]) -> list[float]:
    # one sum, in one order: the same answer on any number of threads, however long the line is
    return [sum(w * v for w, v in zip(row, x, strict=True)) for row in rows]
```

1. Read a row once.
2. Keep `x` in cache:
   - it is small,
   - and it is used *again and again*.

> A sum has one order.

See [the paper](https://example.org/paper) for more.
"""
OVERFLOW = "return document.documentElement.scrollWidth > innerWidth"
WIDE = """
    const bad = [];
    for (const one of document.querySelectorAll("main *")) {
      const box = one.getBoundingClientRect();
      if (box.width && (box.right > innerWidth + 1 || box.left < -1)
          && !one.closest("pre, .table, .unseen")) bad.push(one.outerHTML.slice(0, 80));
    }
    return bad;
"""


def fill(page: Any, fake: Any) -> None:
    fake.say("An umbel is a flower head: many equal rays from one stem.")
    page.ask("What is an umbel?")
    fake.say(RICH, reasoning="They want a table and code.", piece=40)
    page.ask(
        "Compare ways to store a matrix, please, with code: averyveryverylongword" + "x" * 60
    )


def colour(page: Any, selector: str, name: str = "backgroundColor") -> list[int]:
    code = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    text = page.js(code, selector, name)
    return [int(float(n)) for n in text.strip("rgba()").split(",")[:3]]


def contrast(one: list[int], other: list[int]) -> float:
    """https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""

    def light(rgb: list[int]) -> float:
        parts = [c / 255 for c in rgb]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_narrow_screen_has_no_sideways_scroll(
    page: Any, fake: Any, shots: Callable[[str], None]
) -> None:
    page.size(360, 740, phone=True)
    page.driver.refresh()
    page.ready()
    shots("phone-empty")
    fill(page, fake)
    assert not page.js(OVERFLOW)
    assert page.js(WIDE) == []
    shots("phone-conversation")
    page.js("document.querySelector('#scroll').scrollTo(0, 330)")
    shots("phone-table")
    assert not page.one("#chats").is_displayed()
    assert not page.one("#panel").is_displayed()
    page.click("#pulse")
    page.until(lambda: fake.polls > 5)
    assert page.one("#panel").is_displayed()
    assert not page.js(OVERFLOW)
    shots("phone-panel")
    page.click("#panel-close")
    assert not page.one("#panel").is_displayed()
    page.click("#menu")
    assert page.one("#chats").is_displayed()
    shots("phone-chats")
    page.js("document.querySelector('#shade').click()")
    assert not page.one("#chats").is_displayed()
    page.click("#tune")
    assert not page.js(OVERFLOW)
    shots("phone-settings")
    page.keys("#system", page.keyboard.ESCAPE)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_can_be_read(
    page: Any, fake: Any, shots: Callable[[str], None], theme: str
) -> None:
    page.prefer(prefers_color_scheme=theme)
    page.driver.refresh()
    page.ready()
    shots(f"desktop-{theme}-empty")
    fill(page, fake)
    page.until(lambda: fake.polls > 6)
    paper = colour(page, "body")
    assert (sum(paper) > 600) == (theme == "light")
    for selector in ("body", ".meta", ".prose a", ".hint", ".state", "#pulse-state"):
        if page.all(selector):
            assert contrast(colour(page, selector, "color"), paper) >= 4.5, selector
    shots(f"desktop-{theme}")
    page.js("document.querySelector('#scroll').scrollTo(0, 330)")
    shots(f"desktop-{theme}-table")
    fake.say(
        status=429, error="the queue is full: 64 requests wait", headers={"Retry-After": "9"}
    )
    page.ask("And now?")
    shots(f"desktop-{theme}-error")
    page.click("#tune")
    shots(f"desktop-{theme}-settings")
    page.keys("#system", page.keyboard.ESCAPE)


def test_the_theme_can_be_chosen_and_is_kept(page: Any) -> None:
    page.click("#theme")  # light
    page.click("#theme")  # dark
    assert sum(colour(page, "body")) < 150
    page.driver.refresh()
    page.ready()
    assert sum(colour(page, "body")) < 150
    assert "dark" in page.one("#theme").get_attribute("aria-label")
    page.click("#theme")
    assert sum(colour(page, "body")) > 600  # as the system


def test_the_panel_draws(page: Any, fake: Any) -> None:
    page.until(lambda: fake.polls >= 3)
    assert page.text("#pulse-state") == "live"
    line = page.js("return document.querySelector('.spark .line').getAttribute('d')")
    assert line.count("L") >= 1
    told = page.js("return document.querySelector('#panel').innerText")
    assert "tokens/s" in told
    assert "of 16\u202f384 cells" in told
    assert "°C" in told
    assert "8.0 GiB" in told
    assert "simulated" in told
    assert "2 running, 1 waiting" in told
    assert "not loaded" in told
    names = [one.text for one in page.all("#panel .card h3")]
    assert names == ["smollm2", "qwen3", "numa:0", "cann:0"]
    labels = "return [...document.querySelectorAll('.spark')].map((s) => s.ariaLabel).join()"
    assert "Temperature: 4" in page.js(labels)
    page.click("#panel-close")
    assert not page.one("#panel").is_displayed()
    page.driver.refresh()
    page.ready()
    assert not page.one("#panel").is_displayed()  # as it was left


def test_a_graph_has_two_minutes_and_gaps(page: Any) -> None:
    told = page.module("""
        const { Spark } = await load("spark.js");
        const spark = new Spark("x", String);
        for (let t = 0; t < 300; t += 1) if (t < 250 || t > 270) spark.add(1000 + t, t);
        const d = spark.line.getAttribute("d");
        return [spark.samples.length, spark.samples[0][1], d.split("M").length - 1,
                d.includes("NaN")];
    """)
    assert told[:2] == [100, 179]
    assert told[2:] == [2, False]


def test_it_follows_the_end_unless_somebody_reads(page: Any, fake: Any) -> None:
    fake.say("\n\n".join(f"Paragraph {i}" for i in range(300)), piece=20, wait=0.005)
    page.send("Long")
    at_end = (
        "const s = document.querySelector('#scroll');"
        "return s.scrollHeight - s.clientHeight - s.scrollTop < 40 && s.scrollTop > 500"
    )
    page.until(lambda: page.js(at_end))
    page.js("document.querySelector('#scroll').scrollBy(0, -400)")
    page.until(lambda: page.one("#bottom").is_displayed())
    top = page.js("return document.querySelector('#scroll').scrollTop")
    page.whole()
    assert abs(page.js("return document.querySelector('#scroll').scrollTop") - top) < 5
    page.click("#bottom")
    page.until(lambda: page.js(at_end))


def test_keys_reach_everything_and_are_seen(page: Any) -> None:
    page.ask("Hi")
    seen = set()
    for _ in range(60):
        page.driver.switch_to.active_element.send_keys(page.keyboard.TAB)
        told = page.js("""
            const one = document.activeElement;
            const style = getComputedStyle(one.matches("#input") ? one.parentElement : one);
            const ring = style.outlineStyle !== "none" || one.matches("#input");
            const named = one.ariaLabel || one.textContent.trim() || one.labels?.length;
            const name = one.id || one.className || one.tagName;
            return [one === document.body ? "BODY" : name, ring, Boolean(named)];
        """)
        name, ring, named = told
        if name not in ("BODY", "scroll"):
            assert ring, name
            assert named, name
        seen.add(name)
    wanted = {"new", "menu", "tune", "pulse", "input", "export", "import", "clear", "theme"}
    assert wanted <= seen
    assert any("open" in name for name in seen)


def test_an_enter_that_ends_a_composed_word_does_not_send(page: Any, fake: Any) -> None:
    page.keys("#input", "か")
    page.js("""
        const event = { key: "Enter", bubbles: true, cancelable: true, isComposing: true };
        document.querySelector("#input").dispatchEvent(new KeyboardEvent("keydown", event));
    """)
    assert page.value("#input") == "か"
    assert not fake.bodies


def test_less_motion_is_honoured(page: Any, fake: Any) -> None:
    page.prefer(prefers_reduced_motion="reduce")
    fake.say("word " * 400, wait=0.02)
    page.send("Go")
    page.until(lambda: "word" in page.text(".answer .prose"))
    code = "return document.getAnimations().filter((a) => a.playState === 'running').length"
    assert page.js(code) == 0
    page.click("#stop")
    page.whole()


def test_copying(page: Any, fake: Any) -> None:
    fake.say("Take **this**:\n\n```sh\nls -l\n```\n")
    page.ask("How?")
    page.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": page.url},
    )
    read = "return await navigator.clipboard.readText();"
    page.click(".code [data-copy]")
    page.until(lambda: page.all(".code .worked"))
    assert page.module(read) == "ls -l"
    page.click(".answer > footer > button:first-child")
    page.until(lambda: page.all(".answer > footer .worked"))
    assert page.module(read) == "Take **this**:\n\n```sh\nls -l\n```\n"
