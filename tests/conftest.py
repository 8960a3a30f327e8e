"""hypothesis profiles: `ci` is the default and always draws the same; HYPOTHESIS_PROFILE=dev|thorough draws anew."""

import os

from hypothesis import HealthCheck, settings

QUIET = [HealthCheck.too_slow]
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=150, suppress_health_check=QUIET)
settings.register_profile("dev", deadline=None, max_examples=100, suppress_health_check=QUIET)
settings.register_profile("thorough", deadline=None, max_examples=2000, suppress_health_check=QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
