# SPDX-License-Identifier: Apache-2.0
"""The description of a job, and the parsing of its parts."""
