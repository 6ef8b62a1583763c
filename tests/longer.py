"""Sessions that take too long to decide, or need more than Python; of `noxfile.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox
from environments import (
    ANE,
    BESIDE,
    BUILDING,
    CANN,
    CHIPS,
    DEMO,
    KIT,
    MINILM,
    NUMA,
    PROFILES,
    QUESTION,
    TESTING,
    conformance,
    environment,
)


@nox.session(name="cann-report", venv_backend="none")
def cann_report(session: nox.Session) -> None:
    """The figures that the backend for Ascend NPUs is to reach, on simulated chips, as a table.

    It needs 2 GB of disk, 8 GB of memory, and minutes; a figure that is missed is a failure.
    """
    environment(session, "cann")("python", f"{CANN}/tests/report.py")


@nox.session(name="cann-full", venv_backend="none")
def cann_full(session: nox.Session) -> None:
    """What `cann` leaves out: the conformance suite with each form of memory, and the demo
    model against the host (10 minutes)."""
    run = environment(session, "cann")
    run("python", "-m", "pip", "install", "-q", *DEMO)
    run("pytest", f"{CANN}/tests", "-m", "demo", "-s")
    kept = str(Path(session.create_tmp()).absolute())
    for form in ("EP", "RC"):
        for chip in CHIPS:
            env = {"UMBEL_CANN_SIMULATOR": chip, "UMBEL_CANN_SIMULATOR_FORM": form}
            conformance(run, "cann", XDG_CACHE_HOME=kept, **env)


@nox.session(name="serve-load", venv_backend="none")
def serve_load(session: nox.Session) -> None:
    """The server under load, on loopback and the native engine: beside a peer's server and our
    own bench, mixed clients for ten minutes, requests cut anywhere, cases of schemathesis.

    It needs two cores; a figure that is missed is a failure.
    """
    run = environment(session, "plugins")
    install = ("python", "-m", "pip", "install", "-q")
    run(*install, "xllamacpp", "schemathesis>=4")
    run(*install, *DEMO)
    run("python", "tests/serve/peers.py")
    run("python", "tests/serve/load.py", *session.posargs)


@nox.session(venv_backend="none")
def page(session: nox.Session) -> None:
    """The page in Debian's Chromium (`apt install chromium chromium-driver`)."""
    run = environment(session, "checks")
    run("python", "-m", "pip", "install", "-q", "selenium>=4.20")
    run("pytest", "core/tests/server/page", *session.posargs)


@nox.session(name="ane-report", venv_backend="none")
def ane_report(session: nox.Session) -> None:
    """The figures that the backend for the Neural Engine is to reach, on its simulator.

    A figure that is missed is a failure; it takes minutes.
    """
    environment(session, "ane")("python", f"{ANE}/tests/report.py")


@nox.session(name="ane-full", venv_backend="none")
def ane_full(session: nox.Session) -> None:
    """What `ane` leaves out: the conformance suite by other profiles, and the demo model."""
    run = environment(session, "ane")
    run("pytest", f"{ANE}/tests", "-m", "demo", "-s")
    kept = str(Path(session.create_tmp()).absolute())
    for profile in PROFILES:
        conformance(run, "ane", UMBEL_ANE_SIMULATOR=profile, XDG_CACHE_HOME=kept)


@nox.session
def build(session: nox.Session) -> None:
    """Every wheel and sdist, in dist; their contents, and each installed alone."""
    session.install(*TESTING, *BUILDING, "twine>=6", "-e", "./core")
    session.run("python", "tests/packaging/distributions.py", "dist")
    env = {"UMBEL_DIST": "dist"}
    session.run("pytest", "tests/packaging", "-m", "not demo", *session.posargs, env=env)


@nox.session
def arm(session: nox.Session) -> None:
    """The native engine for aarch64, cross-compiled and run under qemu-user (10 minutes).

    It needs Debian's or Ubuntu's apt, qemu-user-static and gcc-aarch64-linux-gnu.
    """
    session.install(*TESTING, *KIT, "setuptools>=77")
    session.install("--no-deps", NUMA)  # pip looks at it before what is editable
    folder = Path(session.create_tmp()).resolve() / "machine"
    wheels = folder / "wheels"
    session.run("python", "tests/arm/machine.py", "--check")
    shutil.rmtree(wheels, ignore_errors=True)
    make = ("pip", "wheel", "-q", "--no-deps", "-w", str(wheels))
    cross = {"CC": "aarch64-linux-gnu-gcc"}
    session.run(*make, "./core", "./plugins", "./plugin-numa", env=cross)
    made = sorted(map(str, wheels.glob("*.whl")))
    session.run("python", "tests/arm/machine.py", str(folder), *made)
    env = {"UMBEL_ARM": str(folder)}
    session.run("pytest", "tests/arm", *BESIDE, *session.posargs, env=env)


@nox.session
def wheelhouse(session: nox.Session) -> None:
    """What a machine without a network needs: `nox -s wheelhouse -- linux-aarch64 cp311`."""
    session.install(*BUILDING)
    session.run("python", "tests/packaging/wheelhouse.py", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Streams an answer from SmolLM2-135M, from the native engine."""
    session.install("./core", NUMA)
    session.install(*DEMO)
    question = " ".join(session.posargs) or QUESTION
    session.run("umbel", "run", "--demo", question, "-n", "96", "--temp", "0")


@nox.session
def vectors(session: nox.Session) -> None:
    """The tokenizers against llama.cpp's vectors (downloads 77 MB) and sentencepiece."""
    session.install(*TESTING, "-e", "./core")
    folder = Path(session.create_tmp()) / "vectors"
    for source in ("llama-cpp-python==0.3.36", "sentencepiece==0.2.3"):
        name = source.partition("==")[0]
        place = folder / name
        if not place.exists():
            session.run(
                *("pip", "download", "-q", "--no-deps", "--no-binary", name, source),
                *("-d", str(place)),
            )
            for archive in place.glob("*.tar.gz"):
                shutil.unpack_archive(archive, place, filter="data")
    env = {"UMBEL_VECTORS": str(folder.resolve())}
    session.run("pytest", "tests/vectors", *session.posargs, env=env)


@nox.session
def peers(session: nox.Session) -> None:
    """Umbel beside transformers and llama.cpp on the same files; renews docs/peers.md.

    llama.cpp is built from source, which takes 15 minutes: `-- --llama-cpp PYTHON` takes that
    of another Python, and `--transformers PYTHON` likewise.
    """
    session.install(*TESTING, "./core")
    session.install(*DEMO)
    if "--transformers" not in session.posargs:
        session.install("torch==2.13.0", "transformers>=5", "accelerate")
    if "--llama-cpp" not in session.posargs:
        session.install("llama-cpp-python==0.3.36")
    write = () if "--only" in session.posargs else ("--write", "docs/peers.md")
    session.run("pytest", "tests/peers")
    session.run("python", "tests/peers/peers.py", *write, *session.posargs)


@nox.session
def convert(session: nox.Session) -> None:
    """Converted folders against transformers and sentence-transformers (downloads 84 MB)."""
    session.install(*TESTING, *KIT, "torch==2.13.0", "transformers>=5", "sentencepiece")
    session.install("sentence-transformers>=5")
    session.install(*MINILM)
    session.run("pytest", "tests/convert", "-W", "default", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """The host backend beside `transformers` in float32 on the same model and threads; and
    with a constraint beside itself without."""
    session.install("./core[grammar]", "torch==2.13.0", "transformers>=5", "accelerate")
    session.install(*DEMO)
    session.run("python", "tests/bench/beside_transformers.py", *session.posargs)
    session.run("python", "tests/bench/constrained.py")


@nox.session(name="model-check")
def model_check(session: nox.Session) -> None:
    """The native engine's barrier, exhaustively, and mutants of it (needs Debian's spin)."""
    session.run("python", "plugin-numa/model/check.py")


@nox.session
def numa(session: nox.Session) -> None:
    """The native engine under a NUMA kernel, on machines of several nodes that qemu emulates.

    It needs Debian with qemu-system-x86, and downloads a kernel at first (71 MB). One machine,
    some tests: `-- --machine two -- -k cpuset`.
    """
    session.install("pytest>=8", "pytest-timeout", "./core", "./plugin-numa")
    work = session.create_tmp()
    session.run("python", "tests/numa/run.py", "--work", work, *session.posargs)


@nox.session(name="bench-peers")
def bench_peers(session: nox.Session) -> None:
    """Umbel's native engine beside llama.cpp, sample by sample; renews docs/performance.md.

    llama.cpp is built from source for this processor, in an environment of its own, which takes
    15 minutes: `-- --llama-cpp PYTHON` takes that of another Python. The models are made at
    first and take 12 GB: `--models FOLDER` keeps them elsewhere.
    """
    session.install("./core[quantize]", "./plugin-numa")
    session.install(*DEMO)
    folder = Path(session.create_tmp()).resolve()
    given = [f"--models={folder / 'models'}"]
    if not {"--llama-cpp", "--list"} & {*session.posargs}:
        beside = folder / "llama.cpp"
        python = str(beside / "bin/python")
        if not beside.exists():
            session.run("python", "-m", "venv", str(beside))
        # not from a cache, where it may stand with other flags
        install = (python, "-m", "pip", "install", "--no-cache-dir", "llama-cpp-python==0.3.36")
        native = {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release"}
        session.run(*install, env=native, external=True)
        given.append(f"--llama-cpp={python}")
    if not {"--row", "--quick", "--list", "--device"} & {*session.posargs}:
        given.append("--write=docs/performance.md")
    session.run("python", "tests/bench/rivals.py", *given, *session.posargs)


@nox.session
def perplexity(session: nox.Session) -> None:
    """The native engine's perplexity beside the host's, for weights of every type; renews
    docs/performance.md.

    It takes half an hour on a quiet machine, and hours beside other work: `-- --resume FILE`
    keeps what was found, and goes on with it.
    """
    session.install("./core[quantize]", NUMA)
    session.install(*DEMO)
    given = [f"--models={Path(session.create_tmp()).resolve()}"]
    if not {"--types", "--chunks"} & {*session.posargs}:
        given.append("--write=docs/performance.md")
    session.run("python", "tests/bench/perplexity.py", *given, *session.posargs)


# What runs on instrumented libraries. Left out are the tests of the runtime alone, which build
# programs with flags of their own, and figures of memory and time, which would be the
# sanitizer's.
UNWATCHED = "hundred or ctrl_c or more_threads or little_memory or nonsense"
TESTS = "plugin-numa/tests"
THREE = ("--umbel-option", "numa.threads=3")  # however few processors there are
SANITIZED = (
    ("--pyargs", "umbel_kit.conformance", "--umbel-device", "numa", *THREE),
    (TESTS, f"--ignore={TESTS}/native", "-k", f"not ({UNWATCHED})"),
)
NO_MEMORY = "allocator_may_return_null=1"  # what is not to be had is NULL here too
SANITIZERS = {
    "address": {
        # the interpreter frees little at its end
        "ASAN_OPTIONS": f"detect_leaks=0:{NO_MEMORY}",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    },
    # Python and NumPy are not instrumented: what orders their accesses is not seen. A forked
    # child may start threads
    "thread": {
        "TSAN_OPTIONS": f"ignore_noninstrumented_modules=1:die_after_fork=0:{NO_MEMORY}"
    },
}


@nox.session
@nox.parametrize("sanitizer", ["address", "thread"])
def sanitize(session: nox.Session, sanitizer: str) -> None:
    """The native engine's tests and the conformance suite on a library that watches itself.

    AddressSanitizer with UndefinedBehaviorSanitizer, or ThreadSanitizer: of gcc, five minutes
    each.
    """
    session.install(*TESTING, *KIT)
    kinds = "address,undefined" if sanitizer == "address" else sanitizer
    flags = f"-O1 -fno-omit-frame-pointer -fsanitize={kinds}"
    again = ("--force-reinstall", "--no-deps", "./plugin-numa")
    session.install(*again, env={"CC": "gcc", "CFLAGS": flags})
    ask = ("gcc", f"-print-file-name=lib{sanitizer[0]}san.so")
    runtime = session.run(*ask, silent=True, external=True)
    env = {"LD_PRELOAD": str(runtime).strip(), **SANITIZERS[sanitizer]}
    for tests in SANITIZED:
        session.run("pytest", *tests, *session.posargs, env=env)
