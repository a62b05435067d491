"""Rewrite assertions in the comparison module, so that failures show the difference."""

import pytest

pytest.register_assert_rewrite("tests.support.compat.decoded")
