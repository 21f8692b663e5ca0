#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Gives out the next epoch of a fence. KEYS: project, queue (not used), fences. ARGV: its name. Returns the epoch.

return redis.call('HINCRBY', KEYS[keys(1)], ARGV[1], 1)
