"""The errors of the system as its callers see them, and beside them the rule that was broken,
which a real system does not name."""

from __future__ import annotations

from umbel_ane.drivers import AneError

ANE = "com.apple.appleneuralengine"
COMPILER = f"{ANE}.compiler"
FAILED = "_ANECompiler : ANECCompile() FAILED: err=()"
INVALID = "InvalidMILProgram"
LOAD = "program load failure"
INFERENCE = "ANEProgramProcessRequestDirect() Failed with status=0x1d : Program Inference error"


def compiling(what: str, rule: str | None = None, found: str = "") -> AneError:
    """The compiler does not take it."""
    return _error(what, rule, found, COMPILER, 0, FAILED)


def invalid(what: str, rule: str | None = None, found: str = "") -> AneError:
    """It is no MIL program, for the compiler."""
    return _error(what, rule, found, COMPILER, 0, INVALID)


def loading(what: str, rule: str | None = None, found: str = "") -> AneError:
    return _error(what, rule, found, ANE, 6, f"{LOAD} (0x20004)")


def evaluating(what: str, rule: str | None = None, found: str = "") -> AneError:
    return _error(what, rule, found, ANE, 0x1D, INFERENCE)


def unstaged(what: str) -> AneError:
    return _error(what, None, "", ANE, 10, "verifyBundleAtPath")


def unloaded() -> AneError:
    return _error("the program is not loaded", None, "", ANE, 2, "the model is not loaded")


def _error(
    what: str, rule: str | None, found: str, domain: str, code: int, text: str
) -> AneError:
    do = f"{found} (the simulator tells; a Mac would not)" if found else None
    return AneError(what, domain=domain, code=code, text=text, where=rule, do=do)
