#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- KEYS: project, queue (not used). ARGV: where the names begin, as ZRANGE BYLEX takes it, limit.
-- Returns names, then their metadata.

local names = redis.call('ZRANGE', KEYS[1], ARGV[1], '+', 'BYLEX', 'LIMIT', 0, ARGV[2])
return { names, pick(KEYS[2], names) }
