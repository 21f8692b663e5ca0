# SPDX-License-Identifier: Apache-2.0
"""A worker for gunicorn that no slow client can occupy: its event loop reads whole requests and sends what is left of
answers, and its threads do nothing but run the application.

``worker`` is the loop, ``connections`` what it does with one connection, ``parsing`` turns bytes into a request by
gunicorn's own parser, ``answers`` writes, ``pool`` has the threads and the queue before them.
"""
