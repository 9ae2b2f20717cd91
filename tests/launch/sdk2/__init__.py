# SPDX-License-Identifier: Apache-2.0
"""SDK 2 itself decides what our estimators must take: ``make oracle`` runs the calls here by it and by us.

``calls.py`` and ``arguments.py`` hold the calls, written once for both. ``capture.py`` runs them with the real ``sagemaker``
2.x, in an environment of its own, and keeps the requests it sends; ``ours.py`` runs them with this package; ``compare.py``
says what is equal, and names every difference that is meant.
"""
