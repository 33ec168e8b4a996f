"""Parameters of which CI tries the first ones, and a campaign all."""

import pytest


def in_campaign(*values):
    """Returns values of a parameter, or tuples of several, that are tried with `-m campaign` only."""
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=pytest.mark.campaign) for v in values]
