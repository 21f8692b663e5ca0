# SPDX-License-Identifier: Apache-2.0
"""What expiry costs and gives back: ``python -m tests.bench.expiry``, whose ``--help`` tells the parts. Prints."""
