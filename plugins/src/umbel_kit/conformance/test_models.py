"""Whole tiny models on the device: the host's answers, however they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

NAMES = (
    *("bert", "gemma3", "gpt2", "granite", "lfm2", "llama", "mamba", "mamba2"),
    *("olmo2", "phi3", "qwen2", "qwen3", "qwen3moe"),
)
DECODERS = [name for name in NAMES if name != "bert"]
# NMSE of a row of logits. A narrow dtype rounds in every layer.
LIMITS = {"f32": 1e-6, "f16": 3e-4, "bf16": 3e-2}
# NMSE of all rows where a device may round activations to the weights' f16, or to 8 bits for
# quantised ones: twice the most that it costs a text of any of these models, in blocks of 32
# (with other blocks and scales it may cost more, but not more than this). It is measured over
# all rows, since what rounding costs a single one is anything: up to 1.1e-5 and 4.5e-2.
ROUNDED = {"f32": 0.0, "f16": 3e-6, "q8_0": 2e-3, "q4_0": 2e-3}
# Two texts for which no router is nearly undecided: the logarithms of the probabilities of the
# last expert that is chosen and of the first that is not are a third apart, in any dtype here.
# Else rounding chooses another expert, and every row after that differs.
IDS = [176, 59, 233, 129, 253, 207, 203, 219, 38, 51, 226, 96]
IDS += [70, 240, 217, 139, 170, 156, 245, 16, 172, 51, 226, 147]
OTHERS = [252, 101, 10, 96, 224, 228, 102, 194, 229, 185, 97, 46, 72, 145, 126, 155, 143, 245]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each for all decoders: the core's, and those in `MODELS` of the modules of cases."""
    if "arch" in metafunc.fixturenames:
        metafunc.parametrize("arch", [*DECODERS, *_more(metafunc.config)])


def _more(config: pytest.Config) -> dict[str, Any]:
    """Architectures of plugins, each with the metadata that it needs beyond the usual."""
    modules = map(import_module, config.option.umbel_cases)
    return {k: v for m in modules for k, v in getattr(m, "MODELS", {}).items()}


@pytest.fixture(scope="session")
def load(request, target, ops, tmp_path_factory):
    """load(arch, device, dtype): a model, open as long as the tests run. The host keeps keys
    and values as the device does, so that only what is computed differs."""
    import umbel
    from umbel import plugins
    from umbel.models import architecture

    from umbel_kit.models import write_model
    from umbel_kit.pytest_plugin import MODEL

    folder, opened = tmp_path_factory.mktemp("models"), {}
    brought = {a.name: a for _, some in plugins.get().ask("architectures") for a in some}
    keys = _more(request.config)
    options = plugins.parse_options(request.config.option.umbel_option)

    def loaded(arch: str, device: str = "", dtype: str = "f32") -> Any:
        key = arch, device or target.device.name, dtype
        path = folder / f"{arch}-{dtype}.gguf"
        if not device:
            request.config.stash[MODEL] = str(path)
        if key not in opened:
            if not path.exists():
                more = {k.replace(".", "__"): v for k, v in keys.get(arch, {}).items()}
                of = brought.get(arch) or architecture(arch)
                write_model(path, of, ops, dtype=dtype, **more)
            kv = _kept(loaded(arch, dtype=dtype)) if device else "auto"
            opened[key] = umbel.load(
                path,
                key[1],
                kv=kv,
                ctx=64,
                parallel=3,
                ubatch=16,
                options=options,
                adapter_slots=2,
                adapter_rank=8,
            )
        return opened[key]

    yield loaded
    for model in opened.values():
        model.close()


def _kept(model: Any) -> str:
    """The dtype of a model's keys and values."""
    caches = (t for name, t in model.runner.states.tensors.items() if "_cache." in name)
    return next((t.dtype.name for t in caches), "auto")


@pytest.fixture
def adapters(load, target, tmp_path):
    """adapters(arch): the names of two adapters, loaded on the device and the host, and the
    file of a third."""
    from umbel_kit.models import write_adapter

    loaded: list[tuple[Any, str]] = []

    def made(arch: str) -> tuple[str, str, str]:
        definition = load(arch, "host").runner.definition
        files = [tmp_path / f"{name}.gguf" for name in ("one", "two", "three")]
        for rank, path in zip((8, 3, 5), files, strict=True):
            write_adapter(path, definition, rank)
        for model in {load(arch, "host"), load(arch)}:
            loaded.extend((model, model.load_adapter(path)) for path in files[:2])
        return "one", "two", str(files[2])

    yield made
    for model, name in loaded:
        model.unload_adapter(name)


@pytest.fixture
def close(request, target, right):
    """close(expected, actual): rows of results within the limit of the device's dtype."""
    from umbel_kit.compare import excess, nmse
    from umbel_kit.conformance.conftest import compare_command

    params = getattr(request.node, "callspec", None)
    rounded = ROUNDED[params.params.get("dtype", "f32") if params else "f32"]
    least = LIMITS[target.info.compute_dtype]
    command = compare_command(request.config)

    def check(expected: np.ndarray, actual: np.ndarray) -> None:
        assert expected.shape == actual.shape
        if rounded > least:
            right(excess(expected, actual, rounded) or "", f"`{command}` finds the node")
            return
        errors = [nmse(e, a) for e, a in zip(expected, actual, strict=True)]
        i = int(np.argmax(errors))
        found = excess(expected[i], actual[i], least)
        right(found or "", f"row {i} of {len(errors)}; `{command}` finds the node")

    return check


@pytest.fixture
def ids() -> list[int]:
    return list(IDS)


def test_encoder(load, close, ids) -> None:
    """The hidden states of a text."""
    close(load("bert", "host").hidden(ids), load("bert").hidden(ids))


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0", "q4_0"])
def test_prefill(load, close, ids, arch, dtype) -> None:
    """The logits of all tokens of a prompt that takes two steps."""
    close(load(arch, "host", dtype).logits(ids), load(arch, dtype=dtype).logits(ids))


def test_decode(load, close, ids, arch) -> None:
    """Token by token after a prompt."""
    expected = load(arch, "host").logits(ids)
    with load(arch).open() as session:
        rows = [session.feed(ids[:10])] + [session.feed([i]) for i in ids[10:]]
    close(expected[9:], np.stack(rows))


def test_two_sequences(load, close, ids, arch) -> None:
    """Two sequences that share steps get what each gets alone."""
    from umbel.state import Sequence

    runner, engine = load(arch).runner, load(arch).engine
    others = OTHERS
    one, two = Sequence(), Sequence()

    def work() -> list[np.ndarray]:
        runner.forward(one, ids[:7])
        runner.forward(two, others[:12])
        made = [runner.decode([one, two], [ids[7 + i], others[12 + i]]) for i in range(6)]
        for sequence in (one, two):
            runner.cache.close(sequence)
        return made

    rows = np.stack(engine.call(work))  # (steps, sequences, n_vocab)
    host = load(arch, "host")
    close(host.logits(ids[:13])[7:], rows[:, 0])
    close(host.logits(others)[12:], rows[:, 1])


def test_adapters(load, adapters, close, ids, arch) -> None:
    """Sequences with two adapters, with one and with none share the steps; then another
    adapter takes a slot, and no plan is made for it."""
    from umbel.state import Sequence

    model, host, (one, two, three) = load(arch), load(arch, "host"), adapters(arch)
    mixes = [{}, {one: 1.0}, {one: 0.5, two: -1.0}]

    def work() -> list[np.ndarray]:
        sequences = [Sequence(adapters=model.mix(mix)) for mix in mixes]
        for sequence in sequences:
            model.runner.forward(sequence, ids[:7])
        made = [model.runner.decode(sequences, [i] * len(mixes)) for i in ids[7:12]]
        for sequence in sequences:
            model.runner.cache.close(sequence)
        return made

    rows = np.stack(model.engine.call(work))  # (steps, sequences, n_vocab)
    expected = [host.logits(ids[:12], adapters=mix) for mix in mixes]
    for i, logits in enumerate(expected):
        close(logits[7:], rows[:, i])
    assert np.abs(expected[0] - expected[1]).max() > 0.1
    model.logits(ids[:12], adapters=one)
    plans = list(model.runner._plans)
    for each in (model, host):
        each.unload_adapter(one)
        each.load_adapter(three, one)
    close(host.logits(ids[:12], adapters=one), model.logits(ids[:12], adapters=one))
    assert sorted(map(str, model.runner._plans)) == sorted(map(str, plans))


def test_cancelled(load, ids, arch) -> None:
    """A generation that is stopped in the middle leaves a session that goes on as if it had
    been asked for no more."""
    model = load(arch)
    with model.open() as session:
        with session.generate(ids[:10], max_tokens=40, temperature=0) as answer:
            for _ in answer:
                break
        rest = session.generate(max_tokens=6, temperature=0)
        rest.read()
        said = answer.tokens + rest.tokens
    whole = model.generate(ids[:10], max_tokens=len(said), temperature=0)
    whole.read()
    assert whole.tokens == said


def test_failing_step(load, ids, arch, monkeypatch) -> None:
    """After a step that failed half-way the same tokens give the same logits."""
    from umbel.errors import DeviceError
    from umbel.plan import Plan

    model = load(arch)
    run = Plan._run_step

    def failing(plan: Plan, step: Any, *given: Any) -> None:
        run(plan, step, *given)
        if step is plan.steps[-1]:
            msg = "a fault of the test's own"
            raise DeviceError(msg)

    with model.open() as session:
        session.feed(ids[:6])
        with monkeypatch.context() as patch:
            patch.setattr(Plan, "_run_step", failing)
            with pytest.raises(DeviceError, match="own"):
                session.feed(ids[6:9])
        again = session.feed(ids[6:9])
        assert session.tokens == ids[:9]
    with model.open() as session:
        session.feed(ids[:6])
        np.testing.assert_array_equal(again, session.feed(ids[6:9]))
