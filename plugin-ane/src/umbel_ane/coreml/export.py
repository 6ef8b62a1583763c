"""Programs to an .mlpackage, on any system: Core ML's public form of them.

Several programs become several functions of one package, which share equal weights.
"""

from __future__ import annotations

import contextlib
import errno
import io
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from umbel_ane.coreml import CoremlError, tools
from umbel_ane.coreml.translate import Files, build
from umbel_ane.mil.program import Program

SUFFIX = ".mlpackage"
# fails on float16 (coremltools 9.0): the statistics that it makes up are float32
UNSAFE = "common::fuse_elementwise_to_batchnorm"


@attrs.frozen(eq=False)
class Source:
    """A program, and the contents of its weight files by their paths in its text."""

    program: Program
    weights: Files


def export(source: Source, path: Path) -> Path:
    """Writes the package of one program, whose function is called `main`.

    It stands there as a whole or not at all: it is made beside `path` and moved.
    """
    return _placed(path, lambda made: _convert(source).save(str(made)))


def export_all(sources: Mapping[str, Source], path: Path) -> Path:
    """Writes one package with a function of each name; the first is the default."""
    ct = tools()

    def write(made: Path) -> None:
        functions = ct.utils.MultiFunctionDescriptor()
        for i, (name, source) in enumerate(sources.items()):
            part = made.parent / f"{i}{SUFFIX}"
            _convert(source).save(str(part))
            functions.add_function(
                str(part), src_function_name="main", target_function_name=name
            )
        functions.default_function_name = next(iter(sources))
        ct.utils.save_multifunction(functions, str(made))

    return _placed(path, write)


def _convert(source: Source) -> Any:
    ct = tools()
    made = build(source.program, source.weights)
    passes = ct.PassPipeline.DEFAULT
    passes.remove_passes({UNSAFE})
    try:
        return ct.convert(
            made,
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT32,  # types stay what they are
            pass_pipeline=passes,
            skip_model_load=True,
        )
    except Exception as error:  # it has no type of its own
        msg = "coremltools cannot convert a program"
        got = f"{type(error).__name__}: {error}"
        raise CoremlError(msg, where=source.program.main.name, got=got) from error


def checked(path: Path) -> Path:
    """`path`, where a package may be written: anew, or over another package."""
    if path.suffix != SUFFIX:
        msg = "a Core ML package has another ending"
        raise CoremlError(msg, where=path, expected=SUFFIX, got=path.suffix or "none")
    if path.is_symlink() or (path.exists() and not (path / "Manifest.json").is_file()):
        got = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
        msg = "what is there is no Core ML package, and is not replaced"
        raise CoremlError(msg, where=path, got=got, do="give another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent):
            return path
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> CoremlError:
    msg, expected = "the package cannot be written there", "a folder that can be written"
    return CoremlError(msg, where=path, expected=expected, got=error.strerror)


def _placed(path: Path, write: Callable[[Path], object]) -> Path:
    checked(path)
    with tempfile.TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as folder:
        made, old = Path(folder) / path.name, Path(folder) / "old"
        with contextlib.redirect_stderr(io.StringIO()):  # it draws a bar for each of its passes
            write(made)
        try:
            _swap(made, path, old)
        except OSError as error:
            raise _unwritable(path, error) from error
    return path


def _swap(made: Path, path: Path, old: Path) -> None:
    """Puts the new one in the place of the old one, which stays if that fails."""
    for _ in range(10):  # somebody else may be writing the same one
        with contextlib.suppress(FileNotFoundError):
            path.rename(old)
        try:
            made.rename(path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(old, ignore_errors=True)
        finally:
            if old.exists() and not path.exists():
                old.rename(path)
    made.rename(path)
