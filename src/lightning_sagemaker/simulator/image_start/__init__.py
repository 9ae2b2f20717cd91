# SPDX-License-Identifier: Apache-2.0
"""A folder that stands first on the module path of simulated jobs; Python runs its ``sitecustomize.py`` at each start."""
