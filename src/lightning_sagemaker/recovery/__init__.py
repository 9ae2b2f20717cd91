# SPDX-License-Identifier: Apache-2.0
"""Training goes on in the job when a process dies: what each rank does for it."""
