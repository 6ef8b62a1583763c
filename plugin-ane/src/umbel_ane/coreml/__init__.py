"""MIL programs and Core ML's public tools: coremltools, an extra, imported when needed."""

from __future__ import annotations

import logging
import warnings
from importlib import import_module
from types import ModuleType

from umbel.errors import UmbelError


class CoremlError(UmbelError):
    """Core ML's tools are missing, or do not take a program."""


def tools() -> ModuleType:
    """The module coremltools.

    It warns on Linux that it cannot predict there, which is known, and of other frameworks'
    versions, which are not used.
    """
    log = logging.getLogger("coremltools")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module("coremltools")
    except ImportError as error:
        msg = "Core ML is reached through coremltools, which is not here"
        do = "pip install 'umbel-plugin-ane[coreml]'"
        raise CoremlError(msg, got=str(error), do=do) from None
    finally:
        log.setLevel(level)
