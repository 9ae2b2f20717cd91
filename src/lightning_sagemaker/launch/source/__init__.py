# SPDX-License-Identifier: Apache-2.0
"""The source that is sent: what of a folder goes, what stays, and why."""
