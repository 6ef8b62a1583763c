"""The real driver: AppleNeuralEngine.framework, a private API, through rubicon-objc.

    native.py      C functions and messages: the only module that touches the system
    encodings.py   the methods and their types; preflight.py asks whether they are so here
    calls.py       values to objects and back; errors
    surface.py, staging.py, model.py, driver.py    what the driver's protocol asks for

What is here above native.py runs on any system against a fake (tests/objc/objc_fake.py).
"""

from umbel_ane.drivers.objc.driver import Private

__all__ = ["Private"]
