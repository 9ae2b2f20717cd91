# SPDX-License-Identifier: Apache-2.0
"""A recipe as people start it: its description, options, help and command line."""
