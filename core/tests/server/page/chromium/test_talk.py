"""Talking: typed, streamed, stopped, said again, changed, kept."""

from __future__ import annotations

import threading
from typing import Any


def test_a_message_is_sent_and_the_answer_streams(page: Any, fake: Any) -> None:
    gate = threading.Event()
    fake.say("One two three four five six seven.", gate=gate)
    page.send("Count\nplease")
    page.until(lambda: "One" in page.text(".answer .prose"))
    assert "seven" not in page.text(".answer .prose")
    assert page.one(".answer").get_attribute("aria-busy") == "true"
    gate.set()
    assert page.whole() == "One two three four five six seven."
    body = fake.bodies[0]
    assert body["messages"] == [{"role": "user", "content": "Count\nplease"}]
    assert body["model"] == "smollm2"
    assert not {"temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"} & set(body)
    assert "7 tokens · 41.3 tokens/s · 75 % of the prompt" in page.text(".answer .meta")
    assert page.text("#said") == "Answer complete"


def test_stop_ends_the_request_and_keeps_what_came(page: Any, fake: Any) -> None:
    fake.say("word " * 2000, wait=0.02)
    page.send("Go on")
    page.until(lambda: "word" in page.text(".answer .prose"))
    page.click("#stop")
    text = page.whole()
    assert text.startswith("word word") or text == "word"
    assert page.text(".answer .meta") == "stopped"
    page.until(fake.gone.is_set)
    assert page.ask("And now?") == "Echo: And now?"
    assert fake.bodies[1]["messages"][1]["content"].strip() == text.strip()


def test_escape_stops_and_enter_does_not_send_meanwhile(page: Any, fake: Any) -> None:
    fake.say("word " * 2000, wait=0.02)
    page.send("Go on")
    page.until(lambda: "word" in page.text(".answer .prose"))
    page.keys("#input", "not yet", page.keyboard.ENTER)
    assert page.value("#input") == "not yet"
    page.keys("#input", page.keyboard.ESCAPE)
    page.until(fake.gone.is_set)
    page.whole()
    assert len(fake.bodies) == 1


def test_a_reload_keeps_history_and_what_was_being_written(page: Any, fake: Any) -> None:
    page.ask("First")
    fake.say("partial " * 500, wait=0.02)
    page.send("Second")
    page.until(lambda: len(page.text(".answer .prose")) > 100)
    page.keys("#input", "a draft")
    page.driver.refresh()
    page.ready()
    texts = [one.text for one in page.all(".said")]
    assert texts == ["First", "Second"]
    assert page.text(".answer .prose").startswith("partial partial")
    assert "interrupted when the page was left" in page.text(".answer .meta")
    assert page.value("#input") == "a draft"


def test_regenerate_keeps_the_answer_before(page: Any, fake: Any) -> None:
    fake.say("Answer A")
    page.ask("Which?")
    fake.say("Answer B")
    page.click(".answer [data-act=again]")
    page.until(lambda: page.text(".answer .prose") == "Answer B")
    page.whole()
    assert len(page.all(".answer")) == 1
    assert fake.bodies[1]["messages"] == fake.bodies[0]["messages"]
    assert page.text(".versions span") == "2/2"
    page.click(".versions button:first-child")
    assert page.text(".answer .prose") == "Answer A"
    page.driver.refresh()
    page.ready()
    assert page.text(".answer .prose") == "Answer A"
    page.click(".versions button:last-child")
    assert page.text(".answer .prose") == "Answer B"


def test_edit_sends_again_and_can_be_undone(page: Any, fake: Any) -> None:
    page.ask("Frist")
    page.ask("Later")
    page.js("document.querySelector('.user [data-act=edit]').click()")
    page.keys(
        ".edit textarea",
        page.keyboard.CONTROL + "a" + page.keyboard.NULL,
        "First",
        page.keyboard.ENTER,
    )
    page.until(lambda: page.text(".answer .prose") == "Echo: First")
    page.whole()
    assert [one.text for one in page.all(".said")] == ["First"]
    assert [m["content"] for m in fake.bodies[-1]["messages"]] == ["First"]
    page.click(".notice .link")
    assert [one.text for one in page.all(".said")] == ["Frist", "Later"]


def test_escape_leaves_an_edit(page: Any) -> None:
    page.ask("Stay")
    page.js("document.querySelector('.user [data-act=edit]').click()")
    page.keys(".edit textarea", "x", page.keyboard.ESCAPE)
    assert page.text(".said") == "Stay"
    assert not page.all(".edit")


def test_system_prompt_and_settings_are_sent_and_kept(page: Any, fake: Any) -> None:
    page.click("#tune")
    page.keys("#system", "Be brief.")
    values = {"temperature": "0,5", "top_p": "0.9", "top_k": "40", "min_p": "0.05"}
    for name, value in {**values, "max_tokens": "64", "seed": "7"}.items():
        page.keys(f"#set-{name}", value)
    page.keys("#set-seed", page.keyboard.ENTER)
    page.ask("Hi")
    body = fake.bodies[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    want = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05}
    want |= {"max_tokens": 64, "seed": 7}
    assert {k: body[k] for k in want} == want
    page.driver.refresh()
    page.ready()
    page.click("#tune")
    assert page.value("#set-temperature") == "0.5"
    assert page.value("#system") == "Be brief."


def test_a_bad_setting_is_told_and_not_taken(page: Any, fake: Any) -> None:
    page.click("#tune")
    page.keys("#set-top_p", "7", page.keyboard.ENTER)
    assert page.one("#settings").get_attribute("open") is not None
    assert "from 0 to 1" in page.text("#set-top_p-hint")
    page.keys("#set-top_p", page.keyboard.ESCAPE)
    page.ask("Hi")
    assert "top_p" not in fake.bodies[0]


def test_the_model_can_be_chosen(page: Any, fake: Any) -> None:
    page.until(lambda: len(page.all("#model option")) == 2)
    page.keys("#model", "qwen3", page.keyboard.ENTER)
    page.ask("Hi")
    assert fake.bodies[0]["model"] == "qwen3"
    page.driver.refresh()
    page.ready()
    assert page.value("#model") == "qwen3"


def test_conversations_are_kept_apart_while_one_is_written(page: Any, fake: Any) -> None:
    gate = threading.Event()
    fake.say("slow answer, and the rest of it comes later", gate=gate)
    page.send("Slow")
    page.until(lambda: "slow" in page.text(".answer .prose"))
    page.click("#new")
    assert page.ask("Quick") == "Echo: Quick"
    assert [one.text for one in page.all(".chat .open")] == ["Quick", "Slow"]
    page.click(".chat:not(.current) .open")
    assert page.text(".said") == "Slow"
    gate.set()
    assert page.whole().endswith("comes later")


def test_a_deleted_conversation_can_be_brought_back(page: Any) -> None:
    page.ask("Keep me")
    page.js("document.querySelector('.chat .plain:last-child').click()")
    assert not page.all(".said")
    page.click(".notice .link")
    assert page.text(".said") == "Keep me"
    page.driver.refresh()
    page.ready()
    assert page.text(".said") == "Keep me"


def test_reasoning_is_folded_and_calls_are_shown_as_code(page: Any, fake: Any) -> None:
    call = {"index": 0, "id": "c1", "type": "function"}
    calls = (
        {**call, "function": {"name": "weather", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"city":'}},
        {"index": 0, "function": {"arguments": '"Bern"}'}},
    )
    fake.say("Let me see.", reasoning="I **think**.", calls=calls, finish="tool_calls")
    page.ask("Weather?")
    details = page.one(".reasoning")
    assert details.get_attribute("open") is None
    page.click(".reasoning summary")
    page.until(lambda: page.text(".reasoning strong") == "think")
    assert page.text(".call .language") == "Call of weather"
    assert page.text(".call code") == '{\n  "city": "Bern"\n}'
    page.ask("And?")
    sent = fake.bodies[1]["messages"][1]["tool_calls"][0]["function"]
    assert sent == {"name": "weather", "arguments": '{"city":"Bern"}'}
