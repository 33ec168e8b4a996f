"""How many examples the properties draw: Hypothesis profiles that scale the number of each property."""

import os

SCALES = {"dev": 0.25, "ci": 1, "nightly": 10}
"""HYPOTHESIS_PROFILE names one; `ci` holds where CI is set, `dev` elsewhere."""

PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")


def draws(number):
    """Returns the examples of a property that draws `number` of them in CI; at least 3."""
    return max(3, round(number * SCALES[PROFILE]))
