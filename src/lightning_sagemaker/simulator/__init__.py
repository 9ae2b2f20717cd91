# SPDX-License-Identifier: Apache-2.0
"""A job on simulated hosts: the cluster, its launchers, processes and network."""
