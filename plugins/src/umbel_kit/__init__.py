"""For authors of plugins: the conformance suite, a scaffold, a table of what is covered.

pytest --pyargs umbel_kit.conformance --umbel-device NAME
umbel-kit new NAME
umbel-kit coverage
"""
