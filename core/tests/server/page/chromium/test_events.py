"""Server-sent events, wherever they are cut; requests and what they raise."""

from __future__ import annotations

from typing import Any

import pytest

CUT = """
    const { EventParser } = await load("api.js");
    const bytes = new TextEncoder().encode(args[0]);
    const read = (parts) => {
      const parser = new EventParser();
      return JSON.stringify(parts.flatMap((part) => parser.push(part)));
    };
    const whole = read([bytes]);
    const found = new Set();
    for (let i = 0; i <= bytes.length; i += 1) {
      found.add(read([bytes.subarray(0, i), bytes.subarray(i)]));
    }
    found.add(read(Array.from(bytes, (_, i) => bytes.subarray(i, i + 1))));
    return [JSON.parse(whole), [...found].every((one) => one === whole)];
"""


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("first", ["", "\ufeff"])
def test_events_cut_at_every_byte(page: Any, end: str, first: str) -> None:
    lines = ["data: héllo 🌿", ": ping", "", "event: x", "id: 1", "data:two", "data:  lines"]
    lines += ["", ": ping", "", "data", "", "data: é中🌱", "", "data: never ended"]
    told = page.module(CUT, first + end.join(lines))
    assert told[0] == ["héllo 🌿", "two\n lines", "", "é中🌱"]
    assert told[1]


def test_an_answer_cut_at_every_byte_gives_the_same_text(page: Any, fake: Any) -> None:
    """Through fetch itself: a stream of ours in place of the network's."""
    told = page.module("""
        const { chat } = await load("api.js");
        const text = "Grüße 🌿 中文";
        const events = Array.from(text, (content) => ({ choices: [{ delta: { content } }] }));
        const told = events.map((one) => `data: ${JSON.stringify(one)}\\n\\n: ping\\n\\n`);
        const bytes = new TextEncoder().encode(`${told.join("")}data: [DONE]\\n\\n`);
        const real = window.fetch;
        const texts = new Set();
        try {
          for (let i = 1; i < bytes.length; i += 1) {
            const parts = [bytes.slice(0, i), bytes.slice(i)];
            window.fetch = async () => new Response(new ReadableStream({
              pull(to) { parts.length ? to.enqueue(parts.shift()) : to.close(); },
            }));
            let got = "";
            for await (const chunk of chat({}, null)) got += chunk.choices[0].delta.content;
            texts.add(got);
          }
        } finally {
          window.fetch = real;
        }
        return [[...texts], text];
    """)
    assert told[0] == [told[1]]


def test_a_stream_without_its_end_is_an_error(page: Any) -> None:
    told = page.module("""
        const { chat } = await load("api.js");
        const real = window.fetch;
        const text = 'data: {"choices":[{"delta":{"content":"a"}}]}\\n\\n';
        window.fetch = async () => new Response(text);
        const got = [];
        try {
          for await (const chunk of chat({}, null)) got.push(chunk.choices[0].delta.content);
        } catch (error) {
          got.push(error.kind, error.message);
        } finally {
          window.fetch = real;
        }
        return got;
    """)
    assert told == ["a", "network", "The connection ended before the answer did."]


def test_a_server_that_has_gone_silent_is_lost(page: Any) -> None:
    told = page.module("""
        const { chat } = await load("api.js");
        const real = window.fetch;
        let left = false;
        const silent = new ReadableStream({ cancel() { left = true; } });
        window.fetch = async () => new Response(silent);
        try {
          for await (const chunk of chat({}, null, 50)) return [chunk];
        } catch (error) {
          return [error.kind, error.message, left];
        } finally {
          window.fetch = real;
        }
    """)
    assert told == ["network", "The server has gone silent.", True]


def test_when_to_try_again_is_seconds_or_a_date(page: Any) -> None:
    told = page.module("""
        const { retryTime } = await load("api.js");
        const now = Date.parse("2026-01-01T00:00:00Z");
        const values = ["5", "Thu, 01 Jan 2026 00:01:00 GMT", "soon", null];
        return values.map((one) => retryTime(one, now) && retryTime(one, now) - now);
    """)
    assert told == [5000, 60000, 0, 0]


def test_numbers_as_people_read_them(page: Any) -> None:
    told = page.module("""
        const f = await load("format.js");
        return [
          f.bytes(0), f.bytes(1536), f.bytes(3221225472), f.bytes(NaN), f.number(1234567),
          f.number(0.123), f.percent(1, 3), f.percent(0, 0), f.status("temperature_c", 41.26),
          f.status("memory_bytes", 1048576), f.status("mode", "mirror"), f.status("x", null),
          f.status("power_w", 9.5), f.name("hbm_bytes"),
        ];
    """)
    thin = "\u202f"
    assert told == [
        "0 B", "1.5 KiB", "3.0 GiB", "–", f"1{thin}234{thin}567", "0.12", "33 %", "–",
        "41.3 °C", "1.0 MiB", "mirror", "–", "9.50 W", "hbm",
    ]  # fmt: skip
