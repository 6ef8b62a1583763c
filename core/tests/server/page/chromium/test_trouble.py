"""What goes wrong is told in the conversation, and can be tried again."""

from __future__ import annotations

import threading
import time
from typing import Any


def test_busy_says_when_to_try_again(page: Any, fake: Any) -> None:
    fake.say(status=429, error="the queue is full", headers={"Retry-After": "2"})
    page.send("Hi")
    page.one(".error")
    assert page.text(".error strong") == "The server is busy"
    assert "the queue is full" in page.text(".error")
    assert "The server asks to wait 2 s." in page.text(".error .when")
    page.until(lambda: "try again now" in page.text(".error .when"))
    page.click(".retry")
    page.until(lambda: page.text(".answer .prose") == "Echo: Hi")
    assert not page.all(".error")
    assert len(page.all(".said")) == 1
    assert fake.bodies[1]["messages"] == fake.bodies[0]["messages"]


def test_what_the_server_said_is_shown_and_kept(page: Any, fake: Any) -> None:
    for status in (400, 413, 500, 503):
        fake.say(status=status, error=f"wrong <b>{status}</b>")
        page.ask("Hi")
        assert f"wrong <b>{status}</b>" in page.text(".error")
    page.driver.refresh()
    page.ready()
    assert len(page.all(".error")) == 4
    page.ask("Now?")  # failed answers are no part of what is sent
    assert [m["role"] for m in fake.bodies[-1]["messages"]] == ["user"] * 5


def test_an_answer_that_breaks_off_keeps_what_came(page: Any, fake: Any) -> None:
    fake.say("Half of an ans", error="the device failed")
    assert page.ask("Hi") == "Half of an ans"
    assert page.text(".error strong") == "The answer broke off"
    assert "the device failed" in page.text(".error")
    page.click(".retry")
    page.until(lambda: page.text(".answer .prose") == "Echo: Hi")
    assert page.text(".versions span") == "2/2"


def test_a_lost_connection_is_told(page: Any, fake: Any) -> None:
    fake.say("Half of an ans", drop=True)
    assert page.ask("Hi") == "Half of an ans"
    assert page.text(".error strong") == "The connection was lost"
    fake.down = True
    page.click(".retry")
    page.until(lambda: "no connection" in page.text(".error"))
    page.until(lambda: "no connection" in page.text("#notices"))
    page.until(lambda: page.text("#pulse-state") == "no connection")
    fake.down = False
    page.until(lambda: page.text("#pulse-state") == "live")
    page.until(lambda: not page.all(".notice"))
    page.click(".retry")
    page.until(lambda: page.text(".answer .prose") == "Echo: Hi")


def test_a_key_is_asked_for_and_kept_for_the_tab(page: Any, fake: Any) -> None:
    fake.key = "secret"
    page.driver.refresh()
    page.until(lambda: page.one("#key").get_attribute("open") is not None)
    page.keys("#key-value", "wrong")
    page.click("#key .first")
    page.until(lambda: page.value("#key-value") == "")
    page.until(lambda: page.one("#key").get_attribute("open") is not None)
    page.keys("#key-value", "secret")
    page.click("#key .first")
    page.ready()
    assert page.ask("Hi") == "Echo: Hi"
    assert page.js("return sessionStorage.getItem('umbel.key')") == "secret"
    assert page.js("return localStorage.getItem('umbel.key')") is None
    page.driver.refresh()
    page.ready()
    assert page.one("#key").get_attribute("open") is None


def test_a_key_that_is_refused_later_can_be_given_then(page: Any, fake: Any) -> None:
    fake.key = "secret"
    page.send("Hi")
    page.until(lambda: page.one("#key").get_attribute("open") is not None)
    page.click("#key [data-close]")
    page.until(lambda: page.text(".error strong") == "The server wants a key")
    page.click(".retry")
    page.keys("#key-value", "secret")
    page.click("#key .first")
    page.until(lambda: page.text(".answer .prose") == "Echo: Hi")


def test_a_full_storage_loses_nothing_and_says_so(page: Any, fake: Any) -> None:
    page.ask("Small")
    fill = """
        for (let n = 4_000_000, i = 0; n > 10; i += 1) {
          try { localStorage.setItem(`filler${i}`, "x".repeat(n)); } catch { n >>= 1; }
        }
    """
    page.js(fill)
    assert page.ask("Too much " * 40).startswith("Echo: Too much")
    assert "storage is full" in page.text(".notice.bad")
    assert page.ask("Still here?") == "Echo: Still here?"
    page.js(
        "for (const k of Object.keys(localStorage)) "
        "if (k.startsWith('filler')) localStorage.removeItem(k)"
    )
    page.ask("Room again")
    assert not page.all(".notice.bad")
    page.driver.refresh()
    page.ready()
    assert len(page.all(".said")) == 4


def test_the_bound_is_told_too(page: Any) -> None:
    told = page.module("""
        const { Store, MOST_CHATS, newChat } = await load("store.js");
        const kept = new Map();
        const storage = {
          get length() { return kept.size; }, key: (i) => [...kept.keys()][i],
          getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => kept.set(k, v),
          removeItem: (k) => kept.delete(k),
        };
        const store = new Store(storage);
        for (let i = 0; i < MOST_CHATS; i += 1) store.put(newChat("m"));
        const chat = newChat("m");
        const saved = store.put(chat);
        const there = store.all().includes(chat);
        store.remove(store.all().find((one) => one !== chat).id);
        return [saved, there, store.unsaved.size, kept.size, MOST_CHATS];
    """)
    assert told == [False, True, 0, 200, 200]


def test_bad_entries_of_the_storage_are_left_alone(page: Any) -> None:
    page.ask("Good")
    page.js(
        "localStorage.setItem('umbel.chat.bad', '{\"id\": 1'); "
        "localStorage.setItem('umbel.settings', 'nonsense')"
    )
    page.driver.refresh()
    page.ready()
    assert page.text(".said") == "Good"
    assert "could not be read" in page.text(".notice")
    assert page.js("return localStorage.getItem('umbel.chat.bad')") == '{"id": 1'


def test_another_tab_is_heard(page: Any, fake: Any) -> None:
    page.ask("Here")
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.open()
    page.ask("There")
    page.driver.close()
    page.driver.switch_to.window(first)
    page.until(lambda: len(page.all(".said")) == 2)


def test_what_was_exported_can_be_brought_in(page: Any, fake: Any, tmp_path: Any) -> None:
    page.ask("Travel")
    text = page.module("""
        const { Store, exported, browserStorage } = await load("store.js");
        return exported(new Store(browserStorage()).all());
    """)
    path = tmp_path / "chats.json"
    path.write_text(text)
    page.click("#clear")
    page.click("#sure .danger")
    page.until(lambda: not page.all(".said"))
    page.one("#file").send_keys(str(path))
    page.until(lambda: page.all(".chat"))
    page.click(".chat .open")
    assert page.text(".answer .prose") == "Echo: Travel"
    path.write_text('{"chats": [{"id": "x"}]}')
    page.one("#file").send_keys(str(path))
    page.until(lambda: "no exported conversations" in page.text("#notices"))


def test_nothing_is_asked_while_nobody_looks(page: Any, fake: Any) -> None:
    page.until(lambda: fake.polls > 1)
    hide = (
        "Object.defineProperty(document, 'hidden', { get: () => arguments_[0], "
        "configurable: true }); document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.js(hide.replace("arguments_[0]", "true"))
    time.sleep(1.2)  # what was under way
    before = fake.polls
    time.sleep(2.2)
    assert fake.polls == before
    page.js(hide.replace("arguments_[0]", "false"))
    page.until(lambda: fake.polls > before)


def test_a_hidden_page_goes_on_writing(page: Any, fake: Any) -> None:
    gate = threading.Event()
    fake.say("One two three four five six seven.", gate=gate)
    page.send("Count")
    page.js("Object.defineProperty(document, 'hidden', { get: () => true })")
    gate.set()
    assert page.whole() == "One two three four five six seven."


def test_a_browser_that_keeps_nothing(page: Any) -> None:
    told = page.module("""
        const { Store, newChat } = await load("store.js");
        const store = new Store(null);
        const chat = newChat("m");
        return [store.put(chat), store.all().length, store.keep({}), store.settings()];
    """)
    assert told == [False, 1, False, {}]
