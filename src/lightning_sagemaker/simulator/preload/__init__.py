# SPDX-License-Identifier: Apache-2.0
"""Import torch and Lightning once, and fork the processes of a simulated job from there."""
