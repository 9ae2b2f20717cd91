# SPDX-License-Identifier: Apache-2.0
"""Model parallelism: degrees and ranks, pipeline stages of unchanged modules, and their schedules."""
