"""Run one history and print its schedule."""

import sys

from tests.support.simulation.simulate import main

sys.exit(main())
