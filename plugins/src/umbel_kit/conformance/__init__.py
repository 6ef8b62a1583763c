"""The conformance suite: `pytest --pyargs umbel_kit.conformance --umbel-device NAME`."""
