#!lua
-- SPDX-License-Identifier: Apache-2.0
-- Replaces metadata that are as expected. KEYS: project, queue. ARGV: name, expected, metadata. Returns 1, else 0.

if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
return 1
