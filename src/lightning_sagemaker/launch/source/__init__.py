# SPDX-License-Identifier: Apache-2.0
"""The source archive of a job: which files are sent, which are not, and why."""
