#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Enters moments into a calendar of the sweeper and strikes others off. KEYS: the calendar.
-- ARGV: moment or 0, its member, member to strike off or "". Returns "".

if ARGV[1] ~= '0' then redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2]) end
if ARGV[3] ~= '' then redis.call('ZREM', KEYS[1], ARGV[3]) end
return ''
