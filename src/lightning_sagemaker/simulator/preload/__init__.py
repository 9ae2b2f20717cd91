# SPDX-License-Identifier: Apache-2.0
"""Import once and fork a process for each rank."""
