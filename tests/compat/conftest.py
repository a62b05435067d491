"""Assertions in the module that compares show what differs, too."""

import pytest

pytest.register_assert_rewrite("tests.support.compat.decoded")
