# SPDX-License-Identifier: Apache-2.0
"""What training costs in time and money: measured here (``bench``), and predicted before it is paid for (``plan``)."""
