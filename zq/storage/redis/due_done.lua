#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Gives a calendar back, if it still is this round's. KEYS: its sweeper. ARGV: the round. Returns "".

if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return ''
