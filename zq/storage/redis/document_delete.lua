#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes a document. KEYS: see document.lua. ARGV: now, title, expected version behind "=", or "*".
-- Returns 1; 0 if there is none of that version.

local title, version = ARGV[2], version_now(ARGV[2], tonumber(ARGV[1]))
if version == '' or ARGV[3] ~= ANY and ARGV[3] ~= '=' .. version then return 0 end
redis.call('HDEL', KEYS[1], title)
redis.call('ZREM', KEYS[2], title)
redis.call('ZREM', KEYS[3], title)
return 1
