# SPDX-License-Identifier: Apache-2.0
"""Tables that come with the package, each with its date and its source in it."""
