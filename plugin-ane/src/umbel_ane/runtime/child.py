"""Compiles in another process, whose compile counter and whose crashes are its own.

A compiled program outlives the process that compiled it: who asks `compiled_exists` afterwards
finds it and has only to load. So a budget of compiles that is used up, or a compiler that can
take a process with it, end a child and not the model. Orion restarts itself by exec() instead.

The two talk in lines of JSON: a folder with `model.mil` and weight files, and what became of
it. The child ends when nobody is left to talk to.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from umbel_ane.drivers import AneError, Driver

PREFIX = "@model_path/"
TEXT = "model.mil"
RESERVE = 4  # compiles that a child leaves unused
SECONDS = 600.0  # that one program may take


@attrs.define(eq=False)
class Child:
    """Another process with a driver of that kind; started when it is needed, and again after
    a crash or when its own budget is used up."""

    kind: str
    limit: int  # compiles of one process; 0: any number
    restarts: int = 0
    compiles: int = 0  # of all children
    _process: subprocess.Popen[str] | None = None
    _used: int = 0

    def compile(self, name: str, text: bytes, weights: Mapping[str, bytes | memoryview]) -> str:
        """Has a program compiled; gives its identifier. `AneError` tells what went wrong, a
        crash of the compiler too."""
        with tempfile.TemporaryDirectory(prefix="umbel-ane-") as folder:
            _stage(Path(folder), text, weights)
            answer = self._ask({"folder": folder}, name)
        self.compiles += 1
        if "error" in answer:
            raise AneError(**answer["error"])
        return str(answer["id"])

    def _ask(self, question: Mapping[str, str], name: str) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        self._used += 1
        late = threading.Timer(SECONDS, process.kill)
        late.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
        except BaseException:
            self.close()
            raise
        finally:
            late.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = process.wait()
        self.close()
        msg = f"the compiler ended the process that compiled {name}"
        do = "the program is not used; -O ane.weights=fp16 or another model may get around it"
        raise AneError(msg, text=f"exit code {code}", do=do)

    def _started(self) -> subprocess.Popen[str]:
        if self.limit and self._used >= max(self.limit - RESERVE, 1):
            self.close()
        if self._process is None or self._process.poll() is not None:
            self.restarts, self._used = self.restarts + 1, 0
            self._process = subprocess.Popen(
                [sys.executable, "-m", "umbel_ane.runtime.child", self.kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is the parent's to hear
            )
        return self._process

    def close(self) -> None:
        """Ends the child, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


def _stage(folder: Path, text: bytes, weights: Mapping[str, bytes | memoryview]) -> None:
    for path, data in {TEXT: text, **weights}.items():
        file = folder / path.removeprefix(PREFIX)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _compile(driver: Driver, folder: Path) -> dict[str, Any]:
    """What the child does with one folder."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != TEXT]
    weights = {f"{PREFIX}{f.relative_to(folder).as_posix()}": f.read_bytes() for f in files}
    try:
        model = driver.model(driver.descriptor((folder / TEXT).read_bytes(), weights))
        try:
            if not model.compiled_exists():
                model.compile()
            return {"id": model.hex_id}
        finally:
            model.release()
    except AneError as error:
        told = {"domain": error.domain, "code": error.code, "text": error.text}
        return {"error": {"what": error.what, **told}}


def main() -> None:
    from umbel_ane.drivers.choose import driver

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    opened = driver(sys.argv[1])
    try:
        for line in sys.stdin:
            answer = _compile(opened, Path(json.loads(line)["folder"]))
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        opened.close()


if __name__ == "__main__":
    main()
