# SPDX-License-Identifier: Apache-2.0
"""Recovery in the job when a process dies: the rank's side."""
