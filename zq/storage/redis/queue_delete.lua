#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes a queue with all that is in it. KEYS: project, queue, answers, history. ARGV: name. Returns "".
-- The floor makes the sequences of a later queue of any name rise above the ones given here (L6).

local sequence = tonumber(redis.call('HGET', KEYS[4], 'sequence') or 0)
if sequence > tonumber(redis.call('GET', KEYS[3]) or 0) then redis.call('SET', KEYS[3], sequence) end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('UNLINK', unpack(KEYS, 4))
return ''
