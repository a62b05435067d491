"""Settings shared by all tests."""

from hypothesis import settings

# A slow machine is no failure: time limits belong to benchmarks. Under CI=true hypothesis loads its own
# "ci" profile, which has no deadline either and always draws the same examples.
settings.register_profile("icefloe", deadline=None)
if settings.get_current_profile_name() == "default":
    settings.load_profile("icefloe")
