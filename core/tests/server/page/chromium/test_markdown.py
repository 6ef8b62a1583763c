"""Answers as Markdown: what is shown, that it grows without a jump, that nothing runs."""

from __future__ import annotations

from typing import Any

import pytest

RENDER = """
    const { Markdown } = await load("markdown.js");
    const root = document.createElement("div");
    new Markdown(root).set(args[0]);
    return root.innerHTML;
"""
SAMPLE = """# Title *one*

Some **bold _and_ slanted** text with `code`, a [link](https://example.org/a_(b) "t").
And https://example.org/x, too.

- one
- two
  - deep `x`
    - deeper

  more of two
- [x] done

1. first

   ```py
   def f(x):
   \treturn x * 2
   ```
2. second

> quoted
> - in it
lazy

| a | b |
|:--|--:|
| 1 | `x\\|y` |
| 2 | **z** |

---

```
# no heading
`` no end
```
~~gone~~ 2 * 3 * 4, snake_case_name, a*b

Last **open
"""
ATTACKS = [
    "<img src=x onerror=alert(1)>",
    "<script>document.title='owned'</script>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt&#58;alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:a) ![y](javascript:alert(1))",
    "<javascript:alert(1)>",
    "```<img src=x onerror=alert(1)>\n<script>alert(1)</script>\n```",
    "```html\n</code></pre><script>alert(1)</script>\n```",
    "| <img src=x onerror=alert(1)> |\n|---|\n| <svg onload=alert(1)> |",
    "> # <iframe src=javascript:alert(1)>",
    "<a href='https://e.org' onclick=alert(1)>x</a>",
    '[x](https://e.org/"onmouseover=alert(1)) `</code><script>`',
    "&lt;script&gt;alert(1)&lt;/script&gt;",
]


def shown(page: Any, text: str) -> str:
    return str(page.module(RENDER, text))


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("# A\n### B", "<h2>A</h2><h4>B</h4>"),
        ("a\nb\n\nc", "<p>a<br>b</p><p>c</p>"),
        (
            "**a** *b* ***c*** _d_",
            "<p><strong>a</strong> <em>b</em> <em><strong>c</strong></em> <em>d</em></p>",
        ),
        ("2 * 3 * 4 snake_case_x", "<p>2 * 3 * 4 snake_case_x</p>"),
        ("**a *b** c*", "<p><em><em>a <em>b</em></em> c</em></p>"),
        ("`` a`b `` `c", "<p><code>a`b</code> `c</p>"),
        ("\\*a\\* &amp; &#65;", "<p>*a* &amp; A</p>"),
        ("- a\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>'),
        ("1. a\n  - b", "<ol><li><p>a</p><ul><li><p>b</p></li></ul></li></ol>"),
        ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
        ("a\n***\nb", "<p>a</p><hr><p>b</p>"),
        ("in 1999. yes\n12. no", "<p>in 1999. yes<br>12. no</p>"),
        ("| no table |", "<p>| no table |</p>"),
        ("a<br>b", "<p>a<br>b</p>"),
        (
            "![cat](https://e.org/c.png)",
            '<p><a href="https://e.org/c.png" '
            'rel="noopener noreferrer" target="_blank" class="image">cat</a></p>',
        ),
        (
            "<mailto:a@b.c>",
            '<p><a href="mailto:a@b.c" rel="noopener noreferrer" '
            'target="_blank">mailto:a@b.c</a></p>',
        ),
        ("[a](/local)", "<p>[a](/local)</p>"),
    ],
)
def test_markdown(page: Any, text: str, html: str) -> None:
    assert shown(page, text) == html


def test_a_table(page: Any) -> None:
    html = shown(page, "| a | b |\n|:-:|--:|\n| 1 | x\\|y |\n| 2 |")
    head = '<th scope="col" class="to-center">a</th><th scope="col" class="to-right">b</th>'
    assert head in html
    assert '<td class="to-center">1</td><td class="to-right">x|y</td>' in html
    assert '<td class="to-center">2</td><td class="to-right"></td>' in html


def test_code_is_as_it_was_written(page: Any) -> None:
    code = "\tif a:\n\n\t\t<b>&amp;\\n</b>  \n# x"
    script = """
        const { Markdown } = await load("markdown.js");
        const root = document.createElement("div");
        new Markdown(root).set(args[0]);
        return [...root.querySelectorAll("pre")].map((one) => one.textContent);
    """
    text = "````py\n" + code + "\n```\n````\n\n- a\n  ```\n" + "  x\n  \ty" + "\n  ```"
    assert page.module(script, text) == [code + "\n```", "x\n\ty"]


def test_growing_ends_as_the_whole(page: Any) -> None:
    told = page.module(
        """
        const { Markdown } = await load("markdown.js");
        const grown = document.createElement("div");
        const growing = new Markdown(grown);
        const failures = [];
        for (let i = 1; i <= args[0].length; i += 1) {
          const text = args[0].slice(0, i);
          growing.set(text, true);
          const whole = document.createElement("div");
          new Markdown(whole).set(text, true);
          if (grown.innerHTML !== whole.innerHTML) failures.push([i, grown.innerHTML]);
        }
        growing.set(args[0], false);
        const whole = document.createElement("div");
        new Markdown(whole).set(args[0]);
        return [failures, grown.innerHTML === whole.innerHTML, whole.innerHTML];
        """,
        SAMPLE,
    )
    assert told[0] == []
    assert told[1], told[2]


def test_growing_does_not_flicker(page: Any) -> None:
    """Marks of what has been opened never show, and elements stay the same ones."""
    told = page.module(
        """
        const { Markdown } = await load("markdown.js");
        const root = document.createElement("div");
        const growing = new Markdown(root);
        const seen = [];
        let pre = null;
        let same = true;
        for (let i = 1; i <= args[0].length; i += 1) {
          growing.set(args[0].slice(0, i), true);
          const found = root.querySelector("pre");
          same &&= !pre || pre === found;
          pre = found;
          const prose = root.cloneNode(true);
          prose.querySelectorAll("pre").forEach((one) => one.remove());
          seen.push(prose.textContent);
        }
        return [same, [...new Set(seen.join(""))].join("")];
        """,
        "# A\n\nabc **de fg** *hi* `jk` [lm](https://e.org) no\n\n```py\na ` b\n```\n\n"
        "| p | q |\n|---|---|\n| r | **s** |\n\n- t\n- u\n\n1. v\n2. w\n",
    )
    assert told[0]
    assert not set(told[1]) & set("#*`|-[]():./")


def test_a_long_and_hostile_text_takes_little_time(page: Any) -> None:
    hostile = [
        "*a " * 30000, "[" * 50000, "](" * 30000, "`" * 3 + "a`" * 30000, "> " * 20000 + "a",
        "- " * 20000, "**a*" * 20000, "<" * 50000, "&#1;" * 20000,
        "| " * 40000 + "\n" + "|-" * 40000, "# " + "#" * 60000 + "x",
        "http://" * 20000, "_" * 50001 + "a", "![" * 30000, "a|b\n|-" + " " * 60000 + "x",
        "http://" + "." * 60000 + "x", "a" + " " * 60000 + "x\n###" + " " * 60000 + "x",
        "[a](" * 30000, " " * 60000 + "a",
        "\n" * 60000, "|a" * 30000, "``a` " * 20000, "[x](https://e.org/" + "(" * 40000,
    ]  # fmt: skip
    script = """
        const { Markdown } = await load("markdown.js");
        const times = [];
        for (const text of args[0]) {
          const began = performance.now();
          new Markdown(document.createElement("div")).set(text, true);
          times.push(Math.round(performance.now() - began));
        }
        return times;
    """
    times = page.module(script, hostile)
    slow = [(t, h[:9]) for t, h in zip(times, hostile, strict=True) if t > 1000]
    assert not slow


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_shown_as_text(page: Any, attack: str) -> None:
    found = page.module(
        """
        const { Markdown } = await load("markdown.js");
        const root = document.createElement("div");
        document.body.append(root);
        new Markdown(root).set(args[0]);
        const bad = [];
        for (const one of root.querySelectorAll("*")) {
          if (/^(img|script|iframe|object|embed|svg|style|form|base|meta)$/i.test(one.tagName)
              && !one.closest("button")) bad.push(one.tagName);
          for (const { name, value } of one.attributes) {
            if (/^on|^style$|^src/.test(name)) bad.push(name);
            if (name === "href" && !/^(https?|mailto):/.test(value)) bad.push(value);
          }
        }
        const hrefs = Array.from(root.querySelectorAll("a"), (one) => one.href);
        const text = root.textContent + hrefs.join(" ");
        await new Promise((resolve) => setTimeout(resolve, 20));
        root.remove();
        return [bad, text];
        """,
        attack,
    )
    assert found[0] == []
    assert page.driver.title == "Umbel"
    assert "alert" in found[1] or "owned" in found[1] or "vbscript" in found[1]


def test_attacks_through_the_whole_page(page: Any, fake: Any) -> None:
    """In a question, a title, an answer, thoughts, a call, an error, names of models."""
    attack = "<img src=x onerror=\"document.title='owned'\"><script>alert(1)</script>"
    call = {"index": 0, "id": attack, "function": {"name": attack, "arguments": attack}}
    fake.say("\n\n".join([attack, *ATTACKS]), reasoning=attack, calls=(call,))
    page.ask(attack)
    fake.say(attack, error=attack)
    page.ask(attack)
    page.js("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    fake.models = [attack]
    page.driver.refresh()
    page.ready()
    assert page.text(".said") == attack
    assert page.text(".chat .open").startswith("<img src=x onerror=")
    assert not page.all("#log img, #log script, #list img, #model img")
    assert page.driver.title.startswith("<img src=x")
    page.driver.find_element("css selector", "body")  # an alert would be in the way
