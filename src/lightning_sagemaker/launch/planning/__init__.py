# SPDX-License-Identifier: Apache-2.0
"""What is decided about a job, without AWS where possible."""
