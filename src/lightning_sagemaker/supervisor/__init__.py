# SPDX-License-Identifier: Apache-2.0
"""A host's processes are started, watched and replaced; who takes part in a step is agreed on in one place."""
