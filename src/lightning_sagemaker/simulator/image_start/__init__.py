# SPDX-License-Identifier: Apache-2.0
"""The first folder on the PYTHONPATH of simulated jobs; Python runs its ``sitecustomize.py`` at each start."""
