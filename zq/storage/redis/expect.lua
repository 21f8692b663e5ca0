#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Enters moments into a calendar of the sweeper and strikes others off. KEYS: the calendar.
-- ARGV: moment or 0, its member, member to strike off or "", "" or the moment before which it must stand to be struck
-- off. Returns "".

if ARGV[1] ~= '0' then redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2]) end
local score = ARGV[3] ~= '' and redis.call('ZSCORE', KEYS[1], ARGV[3])
if score and (ARGV[4] == '' or tonumber(score) < tonumber(ARGV[4])) then redis.call('ZREM', KEYS[1], ARGV[3]) end
return ''
